"""Spark: warm sessions of PySpark tasks (sessions/), submitted applications (applications/) and their clusters (clusters/)."""
