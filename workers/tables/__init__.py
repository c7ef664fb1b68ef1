"""Tables for the tasks of this worker: the catalog that it serves, and what a try gets to use it."""
