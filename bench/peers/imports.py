"""Converts a DAG file for Airflow: only its import lines change."""

import re

#: Paceline's modules, and the Airflow modules that have the same names.
MODULES = {"paceline": "airflow.sdk"}
IMPORT = re.compile(r"^(\s*from\s+)(paceline(?:\.\w+)*)(\s+import\s)", re.MULTILINE)


def for_airflow(text: str) -> str:
    """The text of a DAG file that imports from Airflow instead of Paceline; KeyError if a module has no counterpart here."""
    return IMPORT.sub(lambda found: f"{found[1]}{MODULES[found[2]]}{found[3]}", text)
