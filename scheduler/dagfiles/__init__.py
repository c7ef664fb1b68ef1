"""DAG files: finding them, parsing each in a child process, and storing their DAGs."""
