"""Read-only queries for people and scripts."""
