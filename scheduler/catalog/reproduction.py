"""Compares what a reproduction has published with what its original had: table by table, by schema, rows and checksums."""

import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.view.metadata import ViewMetadata
from sqlalchemy import Engine

from paceline.exceptions import ConflictError, NotFoundError
from scheduler.catalog import contents, views
from scheduler.catalog.contents import State, Summary
from scheduler.catalog.files import Warehouse
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.tables import comparisons, pointers, scratch
from scheduler.store.tables.scratch import Published, Read, Reproduced

NO_TABLE = "no table"
#: Seconds between two looks at the result of another process.
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """What a run made of a table: what was there before its first publication and after its last, and who else changed it."""

    before: str | None
    location: str | None
    steps: tuple[tuple[str | None, str | None], ...]
    others: tuple[str, ...]


def changes(published: Iterable[Published], prefix: str = "") -> dict[str, Change]:
    """The changes of a run by table, for tables whose namespace begins with `prefix`, without it."""
    found: dict[str, Change] = {}
    for one in published:
        if not one.namespace.startswith(prefix):
            continue
        name = f"{one.namespace.removeprefix(prefix)}.{one.name}"
        known = found.get(name)
        step = (one.before, one.location)
        if known is None:
            found[name] = Change(one.before, one.location, (step,), ())
        else:
            others = known.others if one.follows_own else (*known.others, one.writer or "a program outside Paceline")
            found[name] = Change(known.before, one.location, (*known.steps, step), others)
    return found


def differing_inputs(original: Iterable[Read], repeated: Iterable[Read], prefix: str) -> list[dict[str, Any]]:
    """What tasks of the reproduction have read in another state than those of the original, or only one of them has read.

    What a run has itself published before is none: a run that was cleared has read its own tables, where the reproduction reads
    what was there before.
    """
    then, now = (
        {(one.task_id, one.map_index, f"{one.namespace}.{one.name}"): one for one in each} for each in (original, repeated)
    )
    own = {key for key, one in then.items() if one.is_own}
    then = {key: one for key, one in then.items() if key not in own}
    now = {key: one for key, one in now.items() if key not in own and not one.is_own and not one.namespace.startswith(prefix)}
    return [
        {
            "task_id": key[0], "map_index": key[1], "table": key[2],
            "original_publication": None if key not in then else then[key].publication,
            "reproduced_publication": None if key not in now else now[key].publication,
        }
        for key in sorted(then.keys() | now.keys())
        if key not in then or key not in now or then[key].location != now[key].location
    ]  # fmt: skip


class Comparison:
    """Compares two runs of the tables of a warehouse. It reads each state once."""

    def __init__(self, settings: Settings, ignored: Collection[str] = (), short: Collection[str] = ()) -> None:
        #: Tables whose history may not reach back to the original.
        self._short = short
        self._warehouse = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
        self._ignored = ignored
        self._known: dict[str, Summary] = {}

    def table(self, name: str, original: Change | None, repeated: Change | None, base: str | None) -> dict[str, Any]:
        """Compare a table. `base` is the state on which the reproduction has written."""
        places = [None if change is None else change.location for change in (original, repeated)]
        schemas = [self._schema(place) for place in places]
        row: dict[str, Any] = {"table": name, "schema_equal": schemas[0] == schemas[1]}
        if original is None or repeated is None:
            note = "only the original has published it" if repeated is None else "only the reproduction has published it"
            if name in self._short:
                note += ", or what the original has published was removed"
            return row | self._numbers(None, None) | {"is_equal": False, "note": note}
        if None in places or any(map(pointers.is_view, places)):
            row["rows_equal"] = row["checksum_equal"] = row["schema_equal"]
            return self._numbers(None, None) | row | {"is_equal": row["schema_equal"], "note": _kind(places)}
        if original.others or (base is not None and original.before != base):
            who = ", ".join(dict.fromkeys(original.others)) or "another writer"
            note = f"{who} changed it meanwhile: compared is what the runs changed"
            numbers = self._numbers(self._sum(original.steps), self._sum([(base, repeated.location)]))
        else:
            note = ""
            numbers = self._numbers(self._read(places[0]), self._read(places[1]))
        row |= numbers
        return row | {"is_equal": row["schema_equal"] and row["rows_equal"] and row["checksum_equal"], "note": note}

    def _schema(self, location: str | None) -> list[str]:
        if location is None:
            return [NO_TABLE]
        if pointers.is_view(location):
            view = ViewMetadata.model_validate_json(self._warehouse.text(location))
            (current,) = (one for one in view.versions if one.version_id == view.current_version_id)
            texts = [json.dumps(one.model_dump(mode="json"), sort_keys=True) for one in current.representations]
            return ["view", *(f"{one.name} {one.field_type}" for one in views.current_schema(view).fields), *sorted(texts)]
        table = self._warehouse.metadata(location).table
        names = {one.field_id: one.name for one in table.schema().fields}
        partitions = [f"partition {one.transform} of {names.get(one.source_id)}" for one in table.spec().fields]
        return [*State.of(self._warehouse, location).columns(), *partitions]

    def _read(self, location: str | None) -> Summary:
        if location is None:
            return Summary()
        if location not in self._known:
            self._known[location] = contents.summary(self._warehouse, State.of(self._warehouse, location), self._ignored)
        return self._known[location]

    def _sum(self, steps: Iterable[tuple[str | None, str | None]]) -> Summary:
        total = Summary()
        for before, after in steps:
            total = total.plus(self._read(after).minus(self._read(before)))
        return total

    @staticmethod
    def _numbers(then: Summary | None, now: Summary | None) -> dict[str, Any]:
        if then is None or now is None:
            nothing = ("original_rows", "reproduced_rows", "original_checksum", "reproduced_checksum")
            return {"rows_equal": False, "checksum_equal": False, **dict.fromkeys(nothing), "columns_that_differ": []}
        differ = sorted(
            name for name in then.columns.keys() | now.columns.keys() if then.columns.get(name) != now.columns.get(name)
        )
        return {
            "rows_equal": then.rows == now.rows, "checksum_equal": then.checksum == now.checksum,
            "original_rows": then.rows, "reproduced_rows": now.rows,
            "original_checksum": then.text, "reproduced_checksum": now.text, "columns_that_differ": differ,
        }  # fmt: skip


def compare(
    settings: Settings, engine: Engine, original_id: int, reproduction_id: int, *, namespace: str, ignored: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """The tables of two runs side by side, and the inputs in which they differ."""
    catalog, prefix = settings.tables.catalog, f"{namespace}."
    then = changes(transact(engine, scratch.published, catalog, original_id))
    now = changes(transact(engine, scratch.published, catalog, reproduction_id), prefix)
    reads = [transact(engine, scratch.read, catalog, key) for key in (original_id, reproduction_id)]
    bases = _bases(one for one in reads[1] if not one.is_own)
    new = now.keys() - then.keys()
    comparison = Comparison(settings, ignored, new - transact(engine, scratch.reach_back, catalog, original_id, new))
    tables = [comparison.table(name, then.get(name), now.get(name), bases.get(name)) for name in sorted(then.keys() | now.keys())]
    return {"tables": tables, "inputs": differing_inputs(reads[0], reads[1], prefix)}


def judge(settings: Settings, engine: Engine, dag_run_id: int, *, wait: bool = False) -> dict[str, Any] | None:
    """Compare a reproduction that has ended with its original, store the result, and return it.

    Another process may be comparing it: then it returns None, or with `wait` the result of that process. NotFoundError;
    ConflictError if the run was cleared; OSError if a file cannot be read.
    """
    while True:
        with comparisons.claimed(engine, dag_run_id) as is_free:
            one = transact(engine, scratch.reproduction, dag_run_id)
            if one.verdict is not None:
                return one.verdict
            if is_free:
                return _judge(settings, engine, one)
        if not wait:
            return None
        time.sleep(POLL_S)


def _judge(settings: Settings, engine: Engine, one: Reproduced) -> dict[str, Any]:
    cleared = ConflictError(f"{one.run_id} was cleared, so it is compared when it has ended again.")
    if not one.has_ended:
        raise cleared
    if one.original_run_id is None:
        raise NotFoundError(f"The original of {one.run_id} was deleted, so there is nothing to compare with.")
    if one.original_runs:
        raise ConflictError(f"The original {one.original_run_id} runs again, so it is compared when it has ended.")
    if not one.has_tables:
        raise NotFoundError(f"The tables of {one.run_id} were deleted before anybody compared them.")
    found = compare(settings, engine, one.original_id, one.id, namespace=one.scratch, ignored=one.ignored)
    is_equal = one.state == one.original_state and not found["inputs"] and all(row["is_equal"] for row in found["tables"])
    verdict = {"is_equal": is_equal, "original_state": one.original_state, "reproduced_state": one.state, **found}
    if not found["tables"]:
        raise NotFoundError(f"No tables that {one.run_id} or its original has written are there any more.")
    if not transact(engine, scratch.store_verdict, one, verdict):
        raise cleared
    return verdict


def _bases(reads: Iterable[Read]) -> Mapping[str, str]:
    """The first state of each table that a reproduction has read of its original."""
    found: dict[str, str] = {}
    for one in sorted(reads, key=lambda read: read.publication or 0):
        found.setdefault(f"{one.namespace}.{one.name}", one.location)
    return found


def _kind(places: list[str | None]) -> str:
    if places == [None, None]:
        return "both have dropped it"
    return "a view" if any(map(pointers.is_view, places)) else "one has dropped it"
