"""What people store for tasks: variables, connections, pools, XComs, the state of tasks and assets, updates of assets, answers; and
the return of a table to an earlier publication.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection as Session

from paceline.authoring.asset import TABLE
from paceline.authoring.connection import Connection
from paceline.exceptions import ConflictError, NotFoundError, UsageError
from scheduler.actions.actor import Actor, ForbiddenError, UnprocessableError
from scheduler.actions.tasks import Place
from scheduler.store.dags import assets
from scheduler.store.db import clock
from scheduler.store.queueing import pools
from scheduler.store.read import instances, requests, row_versions, values
from scheduler.store.read.listing import Row
from scheduler.store.read.requests import REQUEST, RESERVED, RESPONSE
from scheduler.store.runs import edits
from scheduler.store.secrets import connections, variables
from scheduler.store.secrets.cipher import Cipher
from scheduler.store.tables import history, pointers, publish, tries
from scheduler.store.tables.pointers import Change

#: What becomes of things that exist already. A pool that exists is changed with "skip" too.
Existing = Literal["fail", "skip", "overwrite"]
#: A key, a value and a description.
Variable = tuple[str, str, str | None]
#: A request that HITLOperator did not store.
UNREADABLE = "The request cannot be read."
Kind = Literal["variable", "connection", "pool"]
#: Locks the row of a thing, if there is one.
LOCK: Mapping[Kind, Callable[[Session, str], object]] = {
    "variable": lambda session, name: row_versions.lock(session, row_versions.VARIABLE, {"variable_key": name}),
    "connection": lambda session, name: row_versions.lock(session, row_versions.CONNECTION, {"connection_id": name}),
    "pool": lambda session, name: row_versions.lock(session, row_versions.POOL, {"pool_name": name}),
}
DELETE: Mapping[Kind, Callable[[Session, str], None]] = {
    "variable": variables.delete_variable, "connection": connections.delete, "pool": pools.delete_pool,
}  # fmt: skip


class New(NamedTuple):
    """What to create or change; pools have the arguments of pools.set_pool."""

    variables: Sequence[Variable] = ()
    connections: Sequence[Connection] = ()
    pools: Mapping[str, Mapping[str, Any]] = {}


class Stored(NamedTuple):
    """The names that were written."""

    variables: list[str]
    connections: list[str]
    pools: list[str]


def store(by: Actor, new: New, *, existing: Existing = "overwrite") -> Stored:
    """Create or change all of these, or none. ConflictError if one exists."""
    return _store(by, lambda _: new, existing)


def change(by: Actor, kind: Kind, name: str, changed: Callable[[Session], New]) -> None:
    """Change a thing: `changed` reads it, while no other change can begin, and returns what takes its place."""

    def locked(session: Session) -> New:
        LOCK[kind](session, name)
        return changed(session)

    _store(by, locked, "overwrite")


def _store(by: Actor, get: Callable[[Session], New], existing: Existing) -> Stored:
    def work(session: Session) -> Stored:
        new = get(session)
        written = Stored([], [], list(new.pools))
        if new.variables or new.connections:
            cipher = Cipher.of(by.settings, make=True)
            written.connections.extend(connections.add(session, list(new.connections), cipher, existing=existing))
            written.variables.extend(variables.set_variables(session, new.variables, cipher, replace=existing == "overwrite"))
            if existing == "fail" and (there := {key for key, _, _ in new.variables}.difference(written.variables)):
                raise ConflictError(f"There is a variable {min(there)!r} already.")
        pools.set_pools(session, new.pools, replace=existing != "fail")
        return written

    written = by.write(work)
    if written.pools:
        by.announce("pool set")
    return written


def delete(by: Actor, kind: Kind, name: str) -> None:
    """Delete a variable, connection or pool. NotFoundError; ConflictError for a pool in use."""
    by.write(DELETE[kind], name)


def put_xcom(by: Actor, place: Place, key: str, value: Any, *, new: bool) -> None:
    """Add an XCom to a task instance, or replace one. NotFoundError; ConflictError for a new one that is there."""
    by.write(lambda session: edits.put_xcom(session, _number(session, place), key, value, new=new))


def delete_xcom(by: Actor, place: Place, key: str) -> None:
    """Delete an XCom of a task instance. NotFoundError."""
    by.write(lambda session: edits.delete_xcom(session, _number(session, place), key))


def set_state(by: Actor, place: Place, key: str, value: Any, *, expires_at: datetime | Literal["default"] | None) -> None:
    """Store a value for a task instance. It expires then, after the time of the settings, or never. NotFoundError."""
    _refuse_reserved(key)
    at = None if expires_at == "default" else expires_at
    days = (by.settings.core.task_state_retention_days or None) if expires_at == "default" else None
    by.write(lambda session: edits.set_of_task(session, _number(session, place), key, _json(by, key, value), at=at, days=days))


def replace_state(by: Actor, place: Place, key: str, value: Any) -> None:
    """Replace a value of a task instance. The time at which it expires stays the same. NotFoundError."""
    _refuse_reserved(key)
    by.write(lambda session: edits.replace_of_task(session, _number(session, place), key, _json(by, key, value)))


def delete_state(by: Actor, place: Place, key: str | None, *, of_all_instances: bool = False) -> None:
    """Delete a value of a task instance or, without `key`, all, except requests to people and their answers.

    With `of_all_instances`, those of all instances of the task. NotFoundError.
    """
    _refuse_reserved(key or "")

    def work(session: Session) -> None:
        if not of_all_instances:
            _number(session, place)
        edits.delete_of_task(session, *place[:3], None if of_all_instances else place.map_index, key=key)

    by.write(work)


def set_asset_state(by: Actor, uri: str, key: str, value: Any) -> None:
    """Store a value for an asset."""
    by.write(edits.set_of_asset, uri, key, _json(by, key, value))


def delete_asset_state(by: Actor, uri: str, key: str | None) -> None:
    """Delete a value of an asset or, without `key`, all."""
    by.write(edits.delete_of_asset, uri, key)


def update_asset(by: Actor, uri: str, extra: Mapping[str, Any] | None, partition_key: str | None) -> Row:
    """Record an update of the asset with this URI or name, and return the event. NotFoundError."""
    event = by.write(assets.update, uri, extra, by.made_by, partition_key)
    by.announce("asset updated")
    return event


def drop_updates(by: Actor, *, uri: str | None, dag_id: str | None, before: datetime | None) -> None:
    """Drop updates that DAGs wait to consume. NotFoundError if there is none."""
    if not by.write(assets.drop_waiting, uri=uri, dag_id=dag_id, before=before):
        raise NotFoundError("There is no queued update to drop.")


def answer(by: Actor, account: str, place: Place, options: list[str], params_input: Mapping[str, Any]) -> dict[str, Any]:
    """Answer the question of a task instance, and return what is stored.

    NotFoundError; ForbiddenError if this account may not answer; UsageError if the answer does not fit; ConflictError if the task
    instance has an answer, or its try has ended.
    """
    return by.write(_answer, account, place, options, params_input)


def _answer(session: Session, account: str, place: Place, options: list[str], params_input: Mapping[str, Any]) -> dict[str, Any]:
    ti, request = instances.instance(session, *place), question(session, place)["value"]
    if not requests.is_readable(request):
        raise ConflictError(UNREADABLE)
    if problem := requests.schema_fault(request):
        raise UnprocessableError(problem)
    _check(account, request, options, params_input)
    user = {"id": account, "name": account}
    new = {"chosen_options": options, "params_input": params_input, "responded_at": clock.now(session).isoformat(),
           "responded_by_user": user}  # fmt: skip
    is_answered = value_of(session, place, RESPONSE) is not None
    if not is_answered and not requests.is_open(session, ti["id"], request):
        raise ConflictError(f"Task {place.task_id!r} is {ti['state'] or 'none'} and no longer waits for this answer.")
    if is_answered or not edits.add_to_task(session, ti["id"], RESPONSE, json.dumps(new)):
        raise ConflictError(f"Task {place.task_id!r} has been answered already.")
    return new


def _check(account: str, request: dict[str, Any], options: list[str], params_input: Mapping[str, Any]) -> None:
    users = request.get("assigned_users") or []
    if users and not any(account in {user.get("id"), user.get("name")} for user in users):
        raise ForbiddenError(f"Only {', '.join(str(user.get('name')) for user in users)} may answer.")
    if unknown := [one for one in options if one not in request["options"]]:
        raise UsageError(f"{unknown} are not in the options {request['options']}.")
    if len(options) > 1 and not request.get("multiple"):
        raise UsageError("Only one option can be chosen.")
    if problem := requests.fault(request, params_input):
        raise UsageError(problem)


def question(session: Session, place: Place) -> Row:
    """What a task instance asks a person. NotFoundError if there is no such task instance, or it asks nothing."""
    _number(session, place)
    found = value_of(session, place, REQUEST)
    if found is None:
        raise NotFoundError(f"Task {place.task_id!r} asks nothing.")
    return found


def value_of(session: Session, place: Place, key: str) -> Row | None:
    """The value that a task instance keeps under this key."""
    return values.TASKS.first(session, values.task_filters(*place).equals("key", key))


def _number(session: Session, place: Place) -> int:
    """The number of a task instance. NotFoundError."""
    return int(instances.instance(session, *place)["id"])


def _refuse_reserved(key: str) -> None:
    """ForbiddenError for the keys of requests to people: a client could forge the answer of another account."""
    if key.startswith(RESERVED):
        raise ForbiddenError(f"Keys that begin with {RESERVED} are reserved: answer with PATCH .../hitlDetails.")


def _json(by: Actor, key: str, value: Any) -> str:
    """A value as JSON. UsageError if it is none, or too large."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise UsageError(f"The value {key!r} cannot be written as JSON: {error}.") from None
    size, limit = len(text.encode()), by.settings.core.max_xcom_bytes
    if size > limit:
        raise UsageError(f"The value {key!r} has {size:,} bytes of JSON; {limit:,} are allowed (core.max_xcom_bytes).")
    return text


def table_parts(table: str) -> tuple[str, str]:
    """The namespace and the name of a table. UsageError."""
    namespace, _, name = table.rpartition(".")
    if not namespace or not name:
        raise UsageError(f"{table!r} is no table: write <namespace>.<name>, such as sales.orders.")
    return namespace, name


def roll_back_table(by: Actor, catalog: str, table: str, publication: int, *, wakes: bool = False) -> dict[str, Any]:
    """Make a table what it was after a publication, as a new publication, in one transaction.

    If it `wakes`, that is an update of the asset of the table, too: DAGs that are scheduled on it run. Running tries that have
    written the table conflict with it. NotFoundError; ConflictError if the table is that already.
    """
    row: dict[str, Any] = by.write(_roll_back_table, catalog, table, publication, by=by, wakes=wakes)
    if wakes:
        by.announce("asset updated")
    return row


def _roll_back_table(connection: Session, catalog: str, table: str, publication: int, *, by: Actor, wakes: bool) -> dict[str, Any]:
    namespace, name = table_parts(table)
    connection.exec_driver_sql(publish.HOLD)
    then = history.at(connection, catalog, namespace, name, publication)
    if then is None:
        raise NotFoundError(f"The table {table} had no publication up to {publication}: see `paceline tables history {table}`.")
    now = pointers.of(connection, catalog, None, namespace, name).location
    if now == then["metadata_location"]:
        raise ConflictError(f"The table {table} is as it was after publication {publication} already.")
    # A rollback writes no rows: what the publication has added was added then.
    facts = {key: value for key, value in then["facts"].items() if key not in tries.SUMMED}
    change = Change(namespace=namespace, name=name, expected=now, location=then["metadata_location"], facts=facts, is_new=False)
    number, _ = publish.publish(connection, catalog, [change], by=by.name)
    assert number is not None, "the counter is locked, so the table is the current one"
    by.record(connection, "tables.rollback", {"table": table, "to": then["publication"], "publication": number})
    if wakes:
        extra = {"publication": number, "rolled_back_to": then["publication"]}
        assets.update(connection, TABLE + table, extra, by.made_by)
    return {"table": table, "publication": number, "rolled_back_to": then["publication"], "is_dropped": change.location is None}
