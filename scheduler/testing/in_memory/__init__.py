"""A run without a database, broker or workers: its store, its callbacks, and the loop over its tries."""
