"""Metrics, traces and lineage from the events in PostgreSQL. The engine imports only scheduler/process/measures.py, which
counts.
"""
