"""Repairs the findings of `doctor --deep` by the ordinary transitions of schedulers and waiters."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from paceline.states import RUN_FINISHED
from scheduler.messaging.publisher import Publisher
from scheduler.services.backfill import Backfill
from scheduler.services.promote import Promote
from scheduler.services.queue import send
from scheduler.store.dags import files
from scheduler.store.db.database import transact
from scheduler.store.moves.due import due
from scheduler.store.moves.fire import Fired, fire
from scheduler.store.moves.lose import lose
from scheduler.store.moves.queue import queued_longer_than
from scheduler.store.moves.stop import end_rest
from scheduler.store.runs import selection
from scheduler.store.upkeep import invariants, notices
from scheduler.store.upkeep.invariants import Broken, Tools
from scheduler.store.worker import deferrals

MOST = 1_000
TRIGGER_LOST = {"error": "The trigger of this task was lost."}


def repair(tools: Tools, broken: list[Broken]) -> list[Broken]:
    """Repair violations where possible. Returns the violations that remain. Tasks that run above a limit are left to end."""
    for one in broken:
        if one.name in REPAIRS:
            REPAIRS[one.name](tools, one)
    return invariants.find(tools)


def _rows(connection: Connection, statement: str, *parameters: object) -> list[Any]:
    return list(connection.exec_driver_sql(statement, parameters))


def _instance(tools: Tools, one: Broken, columns: str = "t.id, t.dispatch_id::text") -> Any:
    """Columns of the task instance `t` of a finding, and of its trigger `d`; None if it no longer exists."""
    found = transact(
        tools.engine, _rows,
        f"select {columns} from task_instance t join dag_run r on r.id = t.dag_run_id"
        " left join deferral d on d.task_instance_id = t.id"
        " where (r.dag_id, r.run_id, t.task_id, t.map_index) = (%s, %s, %s, %s)",
        one.dag_id, one.run_id, one.task_id, one.map_index,
    )  # fmt: skip
    return found[0] if found else None


def _lose(tools: Tools, one: Broken) -> None:
    if found := _instance(tools, one):
        reason = "its worker is dead"
        transact(tools.engine, lose, ti_id=found[0], dispatch_id=found[1], reason=reason, at_once=True)


def _end(tools: Tools, one: Broken) -> None:
    def end(connection: Connection, key: int) -> None:
        run = selection.lock_run(connection, key)
        if run is not None and run.state in RUN_FINISHED:
            end_rest(connection, run.id, running_becomes="skipped", reason="its run had ended")

    for (key,) in _runs(tools, one):
        transact(tools.engine, end, key)


def _send(tools: Tools, one: Broken) -> None:
    found = _instance(tools, one)
    queued = transact(tools.engine, queued_longer_than, 0.0, limit=MOST)
    messages = [message for message in queued if found and message.dispatch_id == found[1]]
    send(tools.engine, Publisher(tools.settings), messages, step="rescue")


def _fire(tools: Tools, one: Broken) -> None:
    if found := _instance(tools, one):
        transact(tools.engine, fire, [Fired(ti_id=found[0], dispatch_id=found[1], outcome=TRIGGER_LOST)])


def _forget_trigger(tools: Tools, one: Broken) -> None:
    found = _instance(tools, one, "t.id, d.dispatch_id::text, coalesce(d.waiter, '')")
    if found and found[1]:
        transact(tools.engine, deferrals.still_awaited, found[2], [(found[0], found[1])])


def _leave(tools: Tools, one: Broken) -> None:
    found = _instance(tools, one, "d.waiter")
    if found and found[0]:
        transact(tools.engine, deferrals.release, found[0])


def _release_notices(tools: Tools, one: Broken) -> None:
    for claimed_by, ids in transact(
        tools.engine,
        _rows,
        "select claimed_by, array_agg(id) from notice"
        " where ended_at is null and claimed_until < now() - make_interval(secs => %s) group by 1",
        tools.grace_s,
    ):
        transact(tools.engine, notices.release, claimed_by, ids)


def _release_files(tools: Tools, one: Broken) -> None:
    for (claimed_by,) in transact(
        tools.engine,
        _rows,
        "select distinct claimed_by from dag_file where claimed_by is not null"
        " and claimed_until < now() - make_interval(secs => %s)",
        tools.grace_s,
    ):
        transact(tools.engine, files.release, claimed_by=claimed_by)


def _promote(tools: Tools, one: Broken) -> None:
    keys = [key for (key,) in _runs(tools, one)]
    Promote(tools.engine, tools.settings, tools.versions).examiner.examine(keys)


def _backfill(tools: Tools, _: Broken) -> None:
    Backfill(tools.engine, tools.settings, tools.versions).run_once()


def _runs(tools: Tools, one: Broken) -> list[Any]:
    return transact(tools.engine, _rows, "select id from dag_run where dag_id = %s and run_id = %s", one.dag_id, one.run_id)


#: The repairs by name of the invariant.
REPAIRS: Mapping[str, Callable[[Tools, Broken], object]] = {
    "dead worker": _lose,
    "open in a finished run": _end,
    "overdue": lambda tools, _: transact(tools.engine, due, limit=MOST),
    "deferred without a trigger": _fire,
    "trigger without a deferred task": _forget_trigger,
    "trigger of a dead waiter": _leave,
    "stale notice": _release_notices,
    "stale DAG file": _release_files,
    "backfill without an end": _backfill,
    invariants.UNSENT: _send,
    invariants.UNDECIDED: _promote,
    invariants.UNCLOSED: _promote,
}
