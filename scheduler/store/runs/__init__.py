"""DAG runs and their task instances."""
