"""Measures Paceline beside bare Celery and bare PostgreSQL: `make bench`, or `python -m bench NAME ...`."""
