"""Spark: warm sessions for PySpark tasks (warm/), submitted applications (submit/) and the clusters they go to (masters/)."""
