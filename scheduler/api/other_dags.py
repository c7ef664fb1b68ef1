"""Hides the names of DAGs that an account limited to tags may not see, where a visible row names them too."""

from collections.abc import Iterable, Iterator
from typing import Any

from scheduler.api.call import Call
from scheduler.store.read import dags
from scheduler.store.read.listing import Row

HIDDEN = "another DAG"
SOURCE = ("dag_id", "run_id", "task_id", "map_index")


def in_asset_events(api: Call, rows: list[Row]) -> list[Row]:
    """Updates of assets without tasks and runs of other DAGs."""
    if api.tags() is None:
        return rows
    seen = _seen(api, (name for row in rows for name in (row["dag_id"], *(run["dag_id"] for run in row["created_runs"]))))
    return [
        row
        | ({} if row["dag_id"] in seen else {**dict.fromkeys(SOURCE), "created_by": None, "extra": None})
        | {"created_runs": [run for run in row["created_runs"] if run["dag_id"] in seen]}
        for row in rows
    ]


def in_audit(api: Call, rows: list[Row]) -> list[Row]:
    """Entries of the audit log whose parameters and bodies name no other DAG."""
    if api.tags() is None:
        return rows
    seen = _seen(api, (name for row in rows for name in _named(row["extra"])))
    return [row | {"extra": _without(row["extra"], seen)} for row in rows]


def _seen(api: Call, names: Iterable[str | None]) -> set[str]:
    return set(api.read(dags.visible, {name for name in names if name is not None}, api.tags()))


def _named(value: Any) -> Iterator[str]:
    """The DAGs that parameters or a body name."""
    if isinstance(value, list):
        for item in value:
            yield from _named(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in {"dag_id", "dag_ids"}:
                yield from (one for one in (item if isinstance(item, list) else [item]) if isinstance(one, str))
            else:
                yield from _named(item)


def _without(value: Any, seen: set[str]) -> Any:
    """The object without these names. Values beside the name of another DAG describe that DAG, and are removed too."""
    if isinstance(value, list):
        return [_without(item, seen) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("dag_id"), str) and value["dag_id"] not in seen:
        return {"dag_id": HIDDEN}
    return {name: _dags(item, seen) if name == "dag_ids" else _without(item, seen) for name, item in value.items()}


def _dags(value: Any, seen: set[str]) -> Any:
    if isinstance(value, list):
        return [_dags(one, seen) for one in value]
    return HIDDEN if isinstance(value, str) and value not in seen else value
