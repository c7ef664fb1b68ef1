"""A report that publishes tables. If others were faster, what the try has written is moved onto theirs, and it is repeated."""

from collections.abc import Callable
from typing import TypeVar

from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import WorkerConnection
from scheduler.store.worker.table_tries import TablesChangedError

R = TypeVar("R")

#: How often a report is repeated because others were faster each time. At least one other task succeeds each time.
MOST = 1000


def repeated(report: Callable[[], R], move: Callable[[TablesChangedError], None]) -> R:
    """Return `report()`, repeated after `move` while others are faster. TablesChangedError if what was written cannot be moved."""
    for _ in range(MOST):
        try:
            return report()
        except TablesChangedError as error:
            move(error)
    return report()


def move(settings: Settings, connection: WorkerConnection, claim: Claim, error: TablesChangedError) -> None:
    """Move what the claimed try has written onto the tables that have changed. Raises `error` with a reason if it cannot be."""
    fault_points.point("publish.rebase")
    # Not before: a pool process that publishes without a conflict needs neither pyiceberg nor the storage.
    from scheduler.catalog import rebase
    from scheduler.catalog.files import Warehouse

    warehouse = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
    for table in table_tries.movable(connection, claim, settings.tables.catalog):
        try:
            if table.base_location is None or table.current is None:
                raise rebase.NotRebasedError("it was created or dropped")
            done = rebase.rebase(warehouse, table.base_location, table.current, table.updates)
        except rebase.NotRebasedError as reason:
            raise TablesChangedError(error.moved, str(reason)) from None
        fault_points.point("publish.rebased")
        table_tries.move(connection, claim, table, done.location, done.facts)
