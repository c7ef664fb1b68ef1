"""A DAG file that cannot be read, for the page of import errors."""

from paceline import DAG  # noqa: F401 - files without the word are not read

raise RuntimeError("The variable WAREHOUSE_URL is not set")
