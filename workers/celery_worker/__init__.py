"""The Celery worker: its application, and the way of a message to a try."""
