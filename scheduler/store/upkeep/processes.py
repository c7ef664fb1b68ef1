"""Schedulers, workers and waiters: their registry with heartbeats by the database's clock, and the work of lost processes.

A process enters itself at its start, again if it was declared lost, and ends its entry.
"""

import logging
import os
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extras import Json
from sqlalchemy import Connection, Engine

from paceline.exceptions import ConflictError, NotFoundError
from paceline.states import HOLDS_SLOTS, STARTED
from scheduler.process.pidfile import Pidfile
from scheduler.settings import Settings
from scheduler.store.dags import files
from scheduler.store.db import migrate
from scheduler.store.db.clock import ALIVE, TIMEOUT_OF_KIND, lost, silent
from scheduler.store.db.database import act_as, step, transact
from scheduler.store.moves.claim import claim_undone
from scheduler.store.moves.lose import lose
from scheduler.store.upkeep import notices
from scheduler.store.worker import deferrals

#: Whether a message or a process could be lost, or PostgreSQL crashed, see store/upkeep/pending_work.
PENDING = f"""
    exists (select from task_instance where state in {HOLDS_SLOTS.sql})
    or exists (select from process p where {silent("$2")})
    or not exists (select from crash_free)
"""
LOST = lost(TIMEOUT_OF_KIND)


def register(engine: Engine, *, kind: str, name: str, host: str, pid: int, queues: Sequence[str] = (), concurrency: int = 0) -> str:
    """Enter this start, and return its ID: `name` and a random part. Events of later changes by this engine record the ID."""
    process_id = f"{name}#{uuid.uuid4().hex[:8]}"
    transact(engine, _enter, (process_id, kind, name, host, pid, list(queues), concurrency, migrate.head()))
    act_as(engine, process_id)
    return process_id


@step("register")
def _enter(connection: Connection, row: tuple[object, ...]) -> bool:
    entered = connection.exec_driver_sql(
        "insert into process (id, kind, name, host, pid, queues, concurrency, schema) values (%s, %s, %s, %s, %s, %s, %s, %s)", row
    )
    return entered.rowcount == 1


@step("heartbeat")
def heartbeat(connection: Connection, process_id: str) -> bool:
    """Renew the heartbeat; False if this process was declared lost and must register again."""
    connection.exec_driver_sql("set local synchronous_commit = off")
    renewed = connection.exec_driver_sql(
        "update process set heartbeat_at = clock_timestamp() where id = %s and stopped_at is null", (process_id,)
    )
    return renewed.rowcount == 1


def stop(connection: Connection, process_id: str) -> int:
    """Record that the process has shut down cleanly, and release the triggers of a waiter. Returns their number.

    The lock waits for a claim of this process that is being stored (deferrals.claim). So its triggers are released too, and no
    later claim of this process finds it alive.
    """
    connection.exec_driver_sql(
        """
        with ending as (select id from process where id = %s and stopped_at is null for update)
        update process p set stopped_at = clock_timestamp() from ending where p.id = ending.id
        """,
        (process_id,),
    )
    return deferrals.release(connection, process_id)


def drain(connection: Connection, worker: str, asked_by: str) -> list[str]:
    """Ask workers to take no more tasks, and to end when their running tasks have ended. `worker` is a name or an ID.

    Returns their IDs. NotFoundError; ConflictError if they have stopped.
    """
    found = connection.exec_driver_sql(
        "select id, stopped_at from process where kind = 'worker' and (id = %(worker)s or name = %(worker)s)", {"worker": worker}
    ).all()
    alive = [row.id for row in found if row.stopped_at is None]
    if not found:
        raise NotFoundError(f"There is no worker {worker!r}: `paceline workers list` lists all.")
    if not alive:
        raise ConflictError(f"Worker {worker!r} has stopped already.")
    connection.exec_driver_sql(
        "insert into worker_drain (process_id, asked_by) select unnest(%s::text[]), %s on conflict do nothing", (alive, asked_by)
    )
    return alive


def record_events(connection: Connection, wanted: bool) -> None:
    """Store core.record_events for sessions that cannot set it themselves: those of workers with a separate role."""
    connection.exec_driver_sql("update paceline_schema set record_events = %s where record_events <> %s", (wanted, wanted))


def still_held(connection: Connection, worker_id: str, running: Mapping[str, int]) -> set[str]:
    """Which dispatches in `running` (with the IDs of their task instances) still belong to this worker.

    It also repeats claims that a crash of the database undid: a claim does not wait for the disk, so after a crash a running
    task may be stored as queued with the dispatch ID of this worker.
    """
    if not running:
        return set()
    claim_undone(connection, worker_id, running)
    held = connection.exec_driver_sql(
        """
        select dispatch_id::text from task_instance where id = any(%(instances)s) and state = 'running'
           and worker = %(worker)s and dispatch_id = any(%(dispatches)s::uuid[])
        """,
        {"worker": worker_id, "instances": list(running.values()), "dispatches": list(running)},
    )
    return set(held.scalars())


def stored_as_running(connection: Connection, worker_id: str) -> dict[str, int]:
    """The task instance of each dispatch stored as running on this worker.

    It reads all running task instances of the installation, so it is too slow for every heartbeat.
    """
    rows = connection.exec_driver_sql(
        f"select dispatch_id::text, id from task_instance where worker = %s and state in {STARTED.sql}", (worker_id,)
    )
    return {row.dispatch_id: row.id for row in rows}


@step("lost")
def fail_lost(connection: Connection, ti_id: int | None, dispatch_id: str, reason: str, *, at_once: bool = False) -> list[int]:
    """running -> up_for_retry or failed, because the process that ran this dispatch ended. Returns the changed runs.

    Without the ID of the task instance, all that run anywhere are searched for it.
    """
    if ti_id is None:
        ti_id = connection.exec_driver_sql(
            f"select id from task_instance where state in {STARTED.sql} and dispatch_id = %s", (dispatch_id,)
        ).scalar_one_or_none()
    return lose(connection, ti_id=ti_id, dispatch_id=dispatch_id, reason=reason, at_once=at_once)


@step("expire", lambda expired: expired[0])
def expire_lost(
    connection: Connection, *, worker_timeout_s: float, scheduler_timeout_s: float, waiter_timeout_s: float
) -> tuple[list[str], list[int]]:
    """Declare processes without a heartbeat lost: fail or retry the task instances of lost workers, and release the claims of
    lost waiters and schedulers. After a restart or crash of PostgreSQL, every process gets its full timeout again.

    Returns the IDs of the processes, and the changed runs.
    """
    timeouts = {"worker": worker_timeout_s, "waiter": waiter_timeout_s, "scheduler": scheduler_timeout_s}
    dead = connection.exec_driver_sql(
        f"""
        with lost as (select p.id from process p where {LOST} order by p.id for update skip locked)
        update process p set stopped_at = clock_timestamp() from lost where p.id = lost.id
        returning p.id, p.kind
        """,
        timeouts,
    ).all()
    why = {process_id: f"sent no heartbeat for {timeouts[kind]:g} s" for process_id, kind in dead}
    # A worker may have recorded its end while a child still runs a task, which nothing else would recover.
    left = connection.exec_driver_sql(
        f"""
        select distinct p.id, p.kind from task_instance t join process p on p.id = t.worker
         where t.state in {STARTED.sql} and p.stopped_at is not null and p.id <> all(%s)
        """,
        (list(why),),
    ).all()
    runs = _recover(connection, dead, why) + _recover(connection, left, {row.id: "has ended" for row in left})
    return [row.id for row in dead], sorted(set(runs))


@step("expire", lambda _: True)
def expire(connection: Connection, process_ids: Collection[str], *, why: str) -> list[int]:
    """As `expire_lost`, for processes that are known to have ended. Returns the changed runs."""
    dead = connection.exec_driver_sql(
        """
        with named as (select id from process where id = any(%s) and stopped_at is null order by id for update)
        update process p set stopped_at = clock_timestamp() from named where p.id = named.id returning p.id, p.kind
        """,
        (list(process_ids),),
    ).all()
    return _recover(connection, dead, {row.id: why for row in dead})


def _recover(connection: Connection, dead: Sequence[Any], why: Mapping[str, str]) -> list[int]:
    """Recover the work of these processes (ID, kind). Returns the changed runs."""
    runs: list[int] = []
    for process_id, kind in dead:
        if kind == "worker":
            reason = f"worker {process_id} {why[process_id]}"
            runs += lose(connection, dead_worker=process_id, reason=reason, at_once=True)
        elif kind == "waiter":
            deferrals.release(connection, process_id)
    schedulers = [row.id for row in dead if row.kind == "scheduler"]
    if schedulers:
        files.release_dead(connection, schedulers)
        notices.release_dead(connection, schedulers)
    return runs


#: Seconds between two comparisons.
LOOK_S = 30.0
#: The number of processes and settings that one message names.
NAMED = 3


class Registration:
    """The entry of this process as a `kind` ("scheduler", "worker" or "waiter"), which counts as lost after `silent_s` seconds
    without a heartbeat.
    """

    def __init__(
        self, engine: Engine, settings: Settings, *, kind: str, name: str, silent_s: float, log: logging.Logger,
        pidfile: Pidfile | None = None, queues: Sequence[str] = (), concurrency: int = 0,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._kind = kind
        self._name = name
        self._pidfile = pidfile
        self._queues = queues
        self._concurrency = concurrency
        #: The ID of the newest entry.
        self.id = ""
        #: Called with each ID before `id` has it.
        self.entered: Callable[[str], object] = lambda _: None
        self.settings_drift = SettingsDrift(engine, settings, log.warning, silent_s)

    def enter(self) -> str:
        """Register under a new ID and return it. The settings are compared with those of other processes."""
        process_id = register(
            self._engine, kind=self._kind, name=self._name, host=socket.gethostname(), pid=os.getpid(), queues=self._queues,
            concurrency=self._concurrency,
        )  # fmt: skip
        self.entered(process_id)
        self.id = process_id
        if self._pidfile is not None:
            self._pidfile.note(process_id)
        self.settings_drift.enter(process_id)
        return process_id

    def compare_settings(self) -> None:
        """Compare the settings with those of other live processes, if the last comparison is some time ago."""
        self.settings_drift.look(self.id)

    def expire_former(self) -> list[int]:
        """Declare earlier processes of this kind on this machine lost that have ended, without waiting for their heartbeats to
        expire. Returns the changed runs.
        """
        ended = self._pidfile.take_ended() if self._pidfile is not None else []
        return transact(self._engine, expire, ended, why="is gone from its machine") if ended else []

    def leave(self) -> int:
        """Record that the process has shut down, so that no other process waits for its heartbeat to expire.

        Returns the number of triggers that it released.
        """
        return transact(self._engine, stop, self.id)


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting with different values as JSON, and the processes that have each."""

    key: str
    values: dict[str, list[str]]

    def __str__(self) -> str:
        each = (f"{value} for {_some(names)}" for value, names in sorted(self.values.items()))
        return f"{self.key} is {' and '.join(each)}"


class SettingsDrift:
    """The comparison for one process. It is a part of its health (process/health.py), and logs changes."""

    def __init__(self, engine: Engine, settings: Settings, say: Callable[[str], object], silent_s: float) -> None:
        self._engine = engine
        self._settings = settings
        self._say = say
        self._silent_s = silent_s
        self._looked_at = 0.0
        self._complaint: str | None = None

    def enter(self, process_id: str) -> None:
        """Store the settings of this process, which has just registered, and compare them."""
        transact(self._engine, _store, process_id, self._settings.agreed())
        self._looked_at = 0.0
        self.look(process_id)

    def look(self, process_id: str) -> None:
        """Compare with other live processes, at most every LOOK_S seconds."""
        if time.monotonic() - self._looked_at < LOOK_S and self._looked_at:
            return
        self._looked_at = time.monotonic()
        found = transact(self._engine, settings_differences, silent_s=self._silent_s)
        ours = [each for each in found if any(process_id in names for names in each.values.values())]
        complaint = None
        if ours:
            more = f" and {len(ours) - NAMED} more" if len(ours) > NAMED else ""
            complaint = f"Settings differ between processes: {'; '.join(map(str, ours[:NAMED]))}{more}. Set them to equal values."
        if complaint != self._complaint:
            self._say(complaint or "The settings of all processes are equal again.")
        self._complaint = complaint

    def __call__(self, now: float) -> str | None:
        return self._complaint


def settings_differences(connection: Connection, *, silent_s: float) -> list[Difference]:
    """The settings that live processes have otherwise than others, by key.

    A task can write anything into the row of its worker. That must not keep other processes from starting.
    """
    rows = connection.exec_driver_sql(
        f"""
        select s.key, left(s.value::text, 200), p.id
          from process p cross join jsonb_each(case jsonb_typeof(p.settings) when 'object' then p.settings end) s
         where {ALIVE}
         order by s.key, p.id
        """,
        {"silent": silent_s},
    )
    values: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for key, value, process_id in rows:
        values[key].setdefault(value, []).append(process_id)
    return [Difference(key, by_value) for key, by_value in sorted(values.items()) if len(by_value) > 1]


def _store(connection: Connection, process_id: str, settings: dict[str, Any]) -> None:
    connection.exec_driver_sql("update process set settings = %s where id = %s", (Json(settings), process_id))


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
