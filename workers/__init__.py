"""The workers: Celery workers that claim task instances, run them, report their outcomes and queue the next ones."""
