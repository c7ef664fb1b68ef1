"""Tables of the catalog, in a task: SQL on them, and writes that a repeated run does not double.

Importing this loads neither sqlglot nor DuckDB nor pyiceberg, which are in the extra `tables`.
"""

from paceline.tables.writes import append_once, merge, overwrite_by_logical_date

__all__ = ["append_once", "merge", "overwrite_by_logical_date"]
