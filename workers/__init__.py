"""The execution plane: Celery workers that claim task instances, run them, and report and follow."""
