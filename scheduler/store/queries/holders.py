"""The reader of an explanation, and the task instances that hold slots of a pool, as this reader may see them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from scheduler.deciding.situation import Holder
from scheduler.store.dags.versions import Versions
from scheduler.store.lists import dags

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of an explanation. Of other DAGs, only those that have one of `tags` are named; None names all.

    `versions` are those that its process has read already.
    """

    tags: Collection[str] | None = None
    versions: Versions = field(default_factory=Versions)


def named(connection: Connection, rows: Sequence[Row], reader: Reader) -> tuple[Holder, ...]:
    """These task instances (dag_id, run_id, task_id, map_index, pool_slots) as holders."""
    found = {row["dag_id"] for row in rows}
    seen = found if reader.tags is None else set(dags.visible(connection, found, reader.tags))
    return tuple(_holder(row) if row["dag_id"] in seen else Holder(name=None, run_id=None, slots=row["pool_slots"]) for row in rows)


def _holder(row: Row) -> Holder:
    index = f"[{row['map_index']}]" if row["map_index"] >= 0 else ""
    return Holder(name=f"{row['dag_id']}.{row['task_id']}{index}", run_id=row["run_id"], slots=row["pool_slots"])
