"""DAG files, DAG versions, schedules and assets."""
