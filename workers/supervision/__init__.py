"""The supervision of the processes of a worker: heartbeat, running tasks, and how they are stopped and killed."""
