"""Messages to workers over Redis, and the wakeups of schedulers."""
