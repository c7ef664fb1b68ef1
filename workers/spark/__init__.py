"""Spark: warm sessions for PySpark tasks, submitted applications, and what both say when they fail."""
