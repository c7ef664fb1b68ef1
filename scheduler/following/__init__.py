"""Fast-follow: queues the next ready tasks of a run when a task ends."""
