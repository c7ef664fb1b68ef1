"""Metrics, beside the engine: it knows only scheduler/process/measures.py, where it counts, and PostgreSQL holds the rest."""
