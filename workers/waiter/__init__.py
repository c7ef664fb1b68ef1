"""The waiter: it awaits the triggers of deferred tasks."""
