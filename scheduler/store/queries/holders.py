"""Task instances that hold slots of a pool, named for the person who asks."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection

from scheduler.deciding.situation import Holder
from scheduler.store.lists import dags

Row = dict[str, Any]


def named(connection: Connection, rows: Sequence[Row], tags: Collection[str] | None) -> tuple[Holder, ...]:
    """These task instances (dag_id, run_id, task_id, map_index, pool_slots) as holders.

    Only DAGs that have one of `tags` are named; None names all.
    """
    found = {row["dag_id"] for row in rows}
    seen = found if tags is None else set(dags.visible(connection, found, tags))
    return tuple(_holder(row) if row["dag_id"] in seen else Holder(name=None, run_id=None, slots=row["pool_slots"]) for row in rows)


def _holder(row: Row) -> Holder:
    index = f"[{row['map_index']}]" if row["map_index"] >= 0 else ""
    return Holder(name=f"{row['dag_id']}.{row['task_id']}{index}", run_id=row["run_id"], slots=row["pool_slots"])
