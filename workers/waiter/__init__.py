"""The waiter process, which awaits the triggers of deferred tasks."""
