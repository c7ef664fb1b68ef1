"""What the processes of workers share: their start, logs, secrets, and the guard around user code."""
