"""Tables: roll one back to an earlier publication."""

from typing import Any

from sqlalchemy import Connection

from paceline.authoring.asset import TABLE
from paceline.exceptions import ConflictError, NotFoundError, UsageError
from scheduler.actions.actor import Actor
from scheduler.store.dags import assets
from scheduler.store.tables import history, pointers, publish
from scheduler.store.tables.pointers import Change


def parts(table: str) -> tuple[str, str]:
    """The namespace and the name of a table. UsageError."""
    namespace, _, name = table.rpartition(".")
    if not namespace or not name:
        raise UsageError(f"{table!r} is no table: write <namespace>.<name>, such as sales.orders.")
    return namespace, name


def roll_back(by: Actor, catalog: str, table: str, publication: int, *, wakes: bool = False) -> dict[str, Any]:
    """Make a table what it was after a publication, as a new publication, in one transaction.

    If it `wakes`, that is an update of the asset of the table, too: DAGs that are scheduled on it run. Running tries that have
    written the table conflict with it. NotFoundError; ConflictError if the table is that already.
    """
    row: dict[str, Any] = by.write(_roll_back, catalog, table, publication, by=by, wakes=wakes)
    if wakes:
        by.announce("asset updated")
    return row


def _roll_back(connection: Connection, catalog: str, table: str, publication: int, *, by: Actor, wakes: bool) -> dict[str, Any]:
    namespace, name = parts(table)
    connection.exec_driver_sql(publish.HOLD)
    then = history.at(connection, catalog, namespace, name, publication)
    if then is None:
        raise NotFoundError(f"The table {table} had no publication up to {publication}: see `paceline tables history {table}`.")
    now = pointers.of(connection, catalog, None, namespace, name).location
    if now == then["metadata_location"]:
        raise ConflictError(f"The table {table} is as it was after publication {publication} already.")
    change = Change(
        namespace=namespace, name=name, expected=now, location=then["metadata_location"], facts=then["facts"], is_new=False
    )
    number, _ = publish.publish(connection, catalog, [change], by=by.name)
    assert number is not None, "the counter is locked, so the table is the current one"
    by.record(connection, "tables.rollback", {"table": table, "to": then["publication"], "publication": number})
    if wakes:
        extra = {"publication": number, "rolled_back_to": then["publication"]}
        assets.update(connection, TABLE + table, extra, by.made_by)
    return {"table": table, "publication": number, "rolled_back_to": then["publication"], "is_dropped": change.location is None}
