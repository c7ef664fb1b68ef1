"""The numbers of the schemas, partition specs and sort orders that a commit adds.

A client counts on from the table that it has read. A commit that replaces the table does not require that nobody was faster, so
the table may have given the number to something else meanwhile, or may have the same thing already.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyiceberg.table import update as updates
from pyiceberg.table.metadata import TableMetadata

from scheduler.catalog.errors import CommitFailedError

#: What the same commit has added last.
LAST = -1


class _Numbers:
    """Things of one kind by their numbers, in the table and for a client."""

    def __init__(self, things: Iterable[Any], field: str, is_same: Callable[[Any, Any], bool]) -> None:
        self._things = {getattr(one, field): one for one in things}
        self._field = field
        self._is_same = is_same
        self._given: dict[int, int] = {}

    def add(self, thing: Any) -> Any | None:
        """What is to be added for a client: the thing, with another number if its own is taken; None if the table has it."""
        asked = getattr(thing, self._field)
        same = [number for number, one in self._things.items() if self._is_same(one, thing)]
        number = same[0] if same else max(self._things) + 1 if asked in self._things else asked
        self._given[asked] = self._given[LAST] = number
        if same:
            return None
        self._things[number] = thing.model_copy(update={self._field: number})
        return self._things[number]

    def of(self, asked: int | None) -> int | None:
        """The number in the table for one that a client uses."""
        return asked if asked is None else self._given.get(asked, asked)


def fit(table: TableMetadata, changes: Sequence[Any]) -> tuple[Any, ...]:
    """The updates of a client with the numbers of the table. What the table has already is not added again.

    CommitFailedError for a partition spec whose number is taken: manifests that the client has written have the number.
    """
    schemas = _Numbers(table.schemas, "schema_id", lambda one, other: bool(one == other))
    specs = _Numbers(table.partition_specs, "spec_id", lambda one, other: bool(one == other))
    orders = _Numbers(table.sort_orders, "order_id", lambda one, other: bool(one.fields == other.fields))
    fitting: list[Any] = []

    def add(update: Any, field: str, found: Any) -> None:
        if found is not None:
            fitting.append(update.model_copy(update={field: found}))

    for update in changes:
        match update:
            case updates.AddSchemaUpdate():
                add(update, "schema_", schemas.add(update.schema_))
            case updates.AddPartitionSpecUpdate(spec=spec):
                add(update, "spec", found := specs.add(spec))
                if found is not None and found.spec_id != spec.spec_id:
                    raise CommitFailedError(f"Requirement failed: the table has another partition spec {spec.spec_id}")
            case updates.AddSortOrderUpdate():
                add(update, "sort_order", orders.add(update.sort_order))
            case updates.SetCurrentSchemaUpdate():
                add(update, "schema_id", schemas.of(update.schema_id))
            case updates.SetDefaultSpecUpdate():
                add(update, "spec_id", specs.of(update.spec_id))
            case updates.SetDefaultSortOrderUpdate():
                add(update, "sort_order_id", orders.of(update.sort_order_id))
            case updates.AddSnapshotUpdate(snapshot=snapshot):
                own = snapshot.model_copy(update={"schema_id": schemas.of(snapshot.schema_id)})
                add(update, "snapshot", own)
            case _:
                fitting.append(update)
    return tuple(fitting)
