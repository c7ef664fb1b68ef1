"""What a try gets to use the catalog of its worker, and its report, which publishes what the try wrote.

If others were faster, what the try has written is moved onto theirs, and the report is repeated. A compaction that cannot be moved
is given up, because the table has the same rows without it.
"""

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from paceline import secrets_masker
from paceline.exceptions import NoTablesError
from scheduler.catalog.access import Access
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.external_jobs import Ask
from scheduler.store.worker.hot_path import WorkerConnection
from scheduler.store.worker.table_tries import TablesChangedError

log = logging.getLogger("paceline.tables")
#: The address of the catalog of this worker. Pool processes are forked when it is known.
_uri = ""
#: The address to which this process has connected, see `_wake`.
_woken = ""
#: What the last try of this process was given, by its dispatch.
_given: dict[str, Access] = {}
#: The last dispatch of this process whose tables the report publishes without a new token.
_continued = ""

OFF = "There are no tables: set tables.warehouse, and install paceline[tables]."
ELSEWHERE = "This process has no catalog of tables: use it in a task that runs on a worker."
R = TypeVar("R")
#: Seconds for a connection to the catalog, which nobody needs yet.
CONNECT_S = 1.0
#: How often a report is repeated because others were faster each time. At least one other task succeeds each time.
MOST_REPEATS = 1000


def serve_at(uri: str) -> None:
    """Set the address of the catalog for this process and those that it forks."""
    global _uri  # noqa: PLW0603 - one per worker
    _uri = uri


def of(settings: Settings, claim: Claim, ask: Ask) -> Access:
    """What the claimed try needs to use the catalog; for each further call the same. From now on, its success publishes its tables.

    NoTablesError without a warehouse, StaleTryError if the try has ended.
    """
    if not settings.tables.warehouse:
        raise NoTablesError(OFF)
    if not _uri:
        raise NoTablesError(ELSEWHERE)
    if claim.dispatch_id not in _given:
        _wake()
        token = table_tries.give_token(ask, claim)
        secrets_masker.mask_secret(token)
        fault_points.point("tables.given")
        _given.clear()
        _given[claim.dispatch_id] = Access(
            _uri, token, settings.tables.warehouse_url, settings.tables.catalog, settings.tables.storage
        )
    return _given[claim.dispatch_id]


def _wake() -> None:
    """Connect to the catalog once. Its process, which starts with the first connection, does so while the task starts a JVM."""
    global _woken
    if _woken != _uri:
        _woken, address = _uri, urlsplit(_uri)
        with contextlib.suppress(OSError), socket.create_connection((address.hostname, address.port), CONNECT_S):
            pass


def take_over(claim: Claim, ask: Ask) -> bool:
    """Let the claimed try publish what a Spark application of the try before it writes, with the token that this has.

    False if that try was given none.
    """
    global _continued  # noqa: PLW0603 - a pool process runs one try at a time
    taken = table_tries.take_over(ask, claim)
    if taken:
        _continued = claim.dispatch_id
    return taken


def publishes(claim: Claim, ask: Callable[[], bool]) -> bool:
    """Whether the success of the claimed try publishes tables: it, or an earlier dispatch of it, was given a token.

    `ask` finds out about an earlier dispatch; it is called only for a try that continues.
    """
    if claim.dispatch_id in _given or claim.dispatch_id == _continued:
        return True
    return claim.resume is not None and ask()


def repeated(report: Callable[[], R], move: Callable[[TablesChangedError], None]) -> R:
    """Return `report()`, repeated after `move` while others are faster. TablesChangedError if what was written cannot be moved."""
    for _ in range(MOST_REPEATS):
        try:
            return report()
        except TablesChangedError as error:
            move(error)
    return report()


def move(settings: Settings, connection: WorkerConnection, claim: Claim, error: TablesChangedError) -> None:
    """Move what the claimed try has written onto the tables that have changed, or give it up if it has changed no rows.

    Raises `error` with a reason if neither can be.
    """
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
            if not rebase.may_be_given_up(table.updates):
                raise TablesChangedError(error.moved, str(reason)) from None
            log.info("The compaction of %s.%s is given up, others were faster: %s", table.namespace, table.name, reason)
            table_tries.give_up(connection, claim, table)
            continue
        fault_points.point("publish.rebased")
        table_tries.move(connection, claim, table, done.location, done.facts)
