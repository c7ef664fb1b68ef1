"""DAG files: which there are, reading each in a child process, storing what they hold."""
