"""The scheduler process: its loop and its health."""
