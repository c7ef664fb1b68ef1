"""Read-only queries for people."""
