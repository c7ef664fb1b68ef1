"""Tables of the catalog, in a task: SQL on them, writes that a repeated run does not double, and their upkeep.

Importing this loads neither sqlglot nor DuckDB nor pyiceberg, which are in the extra `tables`.
"""

from paceline.tables.streams import published
from paceline.tables.upkeep import compact, tables_to_compact
from paceline.tables.writes import append_once, merge, overwrite_by_logical_date

__all__ = ["append_once", "compact", "merge", "overwrite_by_logical_date", "published", "tables_to_compact"]
