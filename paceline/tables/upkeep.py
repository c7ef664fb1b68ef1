"""The upkeep of tables in a task: joins small files. What a pass has joined appears with the success of its task."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.authoring import running
from paceline.tables import writes

if TYPE_CHECKING:
    from paceline.authoring.asset import Asset

#: Bytes of the files that one pass joins in a table, and tables of one pass.
MOST_BYTES, MOST_TABLES = 1 << 30, 100


def compact(table: str | Asset, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Join small files of `table`, so that its readers open fewer. Its rows stay what they are.

    `most_bytes` limits the files that one call joins, of which each counts as 1 MiB or more; the next call joins what is left.
    Small are Parquet files of less than three quarters of the table's `write.target-file-size-bytes`, or of 128 MiB without that
    property. Files with deleted rows (merge-on-read), and those of an older partitioning, are left alone.

    Returns the name of the table, the number of files that were joined, and of those that they have become, and how many are
    left. PacelineError if the files of the table do not have the rows that it counts.
    """
    from paceline.tables import compaction

    name = writes.name_of(table)
    done = compaction.compact(writes.catalog_of(running.get_current_context()).load_table(name), most_bytes)
    return {"table": name, "files": done.files, "into": done.into, "left": done.left}


def tables_to_compact(
    namespaces: Sequence[str] | None = None, most_tables: int = MOST_TABLES, most_bytes: int = MOST_BYTES
) -> list[str]:
    """The names of up to `most_tables` tables that `compact` has something to do for, those with the most small files first.

    `namespaces` limits them to those in these namespaces; by default, to all that the task may read. `most_bytes` is the limit of
    `compact`.
    """
    from paceline.tables import compaction

    found = compaction.due(writes.catalog_of(running.get_current_context()), namespaces, most_bytes)
    return [name for name, _ in heapq.nlargest(most_tables, found, key=lambda one: one[1])]
