"""Heartbeats, lost processes, retention, notices and invariants."""
