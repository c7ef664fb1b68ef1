"""The one connection of a pool process, and its hot path: claim, report and suspend as prepared statements.

A claim is one round trip that does not wait for the disk. A report with fast-follow is one round trip that does, and so does
every other write. The heartbeat of the worker repeats a claim that a crash of PostgreSQL undid (store/upkeep/processes.still_held).
A pool process that waits for a message, or runs a long task, holds no connection (docs/adr/0031).
"""

import contextlib
import math
import os
import socket
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import Json, register_default_json
from sqlalchemy import Engine

from paceline.authoring import xcom
from paceline.exceptions import PacelineError
from paceline.states import STARTED, TaskState
from scheduler.deciding.following import NO_RANGES, JoinStates, Plan, Ranges
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.dags import versions
from scheduler.store.db import fencing, rows, sqlstates
from scheduler.store.db.database import connect, libpq_environment, libpq_variables, over
from scheduler.store.db.fencing import Writer
from scheduler.store.moves import prepared as sql
from scheduler.store.worker import claims
from scheduler.store.worker.claims import (
    REPRODUCTION,
    Claim,
    Ending,
    MovedInPlace,
    NextInPlace,
    Refused,
    Reported,
    ReportRow,
    RunAfter,
    Undecided,
)  # fmt: skip
from scheduler.store.worker.pooled import PooledCursor

T = TypeVar("T")

#: Makes commits durable even if synchronous_commit is off on the server; a stricter setting stays.
DURABLE = "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
SESSION = {
    # The locks of a stopped pool process must be released before its worker is declared lost.
    "idle_in_transaction_session_timeout": "5s",
    # Every statement has an index in its order, and statistics of a new or emptied table are useless: always use indexes and
    # nested loops, and never plan again.
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort", "jit"), "off"),
    "plan_cache_mode": "force_generic_plan",
}
#: Seconds without a statement after which a connection closes for which others wait.
BRIEFLY_S = 0.2
#: The longest wait for the end of a connection on the server, in seconds.
ENDS_WITHIN_S = 1.0
#: How many reports do not begin with a step after one that could not be stored as a step.
WITHOUT_STEPS = 8
_ALL: "weakref.WeakSet[WorkerConnection]" = weakref.WeakSet()
#: Of the thread that forks: `connections` are those that it holds. Other threads may fork at the same time.
_HELD = threading.local()
#: The fields of a claim in place that are those of its own row, with their places; the others are those of the claim before.
OF_ROW = {name: place for place, name in enumerate(Claim.__slots__) if name in {field.name for field in fields(MovedInPlace)}}
_of_row, _of_claim = attrgetter(*OF_ROW), attrgetter(*Claim.__slots__)
RESUME = Claim.__slots__.index("resume")
#: What a task sees of its run and a reproduction has from its original, which has the logical date to itself.
SEEN_BY_ORIGINAL = """
select o.run_type, o.logical_date, o.run_after from reproduction p join dag_run o on o.id = p.original_id where p.dag_run_id = %s
"""
ENDED = "select 1 from task_instance where id = %s and dispatch_id = %s and state = %s"
#: With the version of its number: the run may have another one since the report.
#: The pool keeps the search short: its running and queued task instances have an index.
MOVED_IN_PLACE = f"""
select t.id, t.dispatch_id::text, t.task_id, t.map_index, t.queue, t.priority_weight, t.state, t.pool, t.pool_slots, t.task_no,
       t.try_number, t.max_tries, t.started_at, r.version_id
  from task_instance t join dag_run r on r.id = t.dag_run_id
 where t.pool = %s and t.state in {STARTED.sql} and t.dispatch_id = %s
"""


MAY_CLOSE = "select has_column_privilege('dag_run', 'state', 'update') and has_column_privilege('dag_run', 'ended_at', 'update')"


class UndoneError(PacelineError):
    """Undoes the transaction that raised it."""


class WorkerConnection:
    """The one connection of a pool process, without engine and ORM. Each call opens it if it is not open.

    It closes after an error, and after `worker.idle_connection_seconds` without a statement. With the address of a `pooler`, all
    statements go through that, and this process has no connection to PostgreSQL.
    """

    def __init__(self, settings: Settings, worker_id: str, pooler: str | None = None) -> None:
        self.worker_id = worker_id
        self._pooler = pooler
        self._pooled: PooledCursor | None = None
        self.settings = settings
        self._acts_as: str | None = None
        self._connection: Connection | None = None
        self._cursor: Cursor | None = None
        #: Returns the DAG of a version, which never changes. UnreadableVersionError.
        self.dag = lru_cache(maxsize=versions.MAX_CACHED)(self._dag)
        #: Held from a statement until its rows are read, and during a transaction: the connection does not close in between.
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._used_at = 0.0
        #: The engine over the connection, with that connection and its actor: a statement is prepared once on each.
        self._lent: tuple[Connection, str, Engine] | None = None
        #: Whether others probably wait for a connection too, as after a failed attempt: the next one stays open only BRIEFLY_S.
        self.is_contended = False
        #: The variables that libpq reads, from before user code could change them: `ti` may open a connection in user code.
        self._environment = libpq_variables()
        _ALL.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the next statement opens no connection, unless the idle one closes just before."""
        return self._cursor is not None or self._pooler is not None

    def now(self) -> datetime:
        """The time by the database's clock."""
        now: datetime = self.value("select clock_timestamp()", ())
        return now

    def read(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        with self._lock:
            return self.run(statement, parameters).fetchall()

    def value(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any], default: Any = None) -> Any:
        """The one value of a statement, `default` without a row."""
        return next((value for (value,) in self.read(statement, parameters)), default)

    def dicts(self, statement: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows of a statement as dicts."""
        with self._lock:
            cursor = self.run(statement, parameters)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def objects(self, kind: type[T], statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[T]:
        """The rows of a statement as dataclasses, see store/db/rows.py."""
        with self._lock:
            return rows.of_cursor(kind, self.run(statement, parameters))

    def write(self, writer: Writer, statement: str, parameters: Sequence[Any]) -> int:
        """Run a statement of `fencing.guarded`, and return how many rows it wrote. StaleTryError if the try is stale."""
        written: int | None = self.value(statement, (*writer.key, *parameters))
        if written is None:
            raise fencing.stale(writer)
        return written

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> rows.Cursor:
        """Run one statement; after an error the connection is closed. Read its rows under the lock, as `read` does."""
        with self._lock:
            if self._pooler is not None:
                return self._ask(self._pooler, statement, parameters)
            try:
                cursor = self._cursor
                if cursor is None or self._acts_as != self.worker_id:
                    cursor = self._open()
                cursor.execute(statement, parameters)
            except psycopg2.Error as error:
                self.close()
                raise sqlstates.lost(error) or error from None
            self._used_at = time.monotonic()
            return cursor

    def _ask(self, pooler: str, statement: str | None, parameters: Sequence[Any] | Mapping[str, Any]) -> PooledCursor:
        try:
            cursor = self._pooled = self._pooled or PooledCursor(pooler)
            cursor.execute(self.worker_id, statement, parameters)
        except BaseException:
            # Also if user code was interrupted: the answer may still come.
            self.close()
            raise
        return cursor

    @contextlib.contextmanager
    def transaction(self, statement: str, parameters: Mapping[str, Any]) -> Iterator[None]:
        """A transaction that begins with a statement. It commits at the end; after an error the connection is closed.

        After an UndoneError it stays open.
        """
        with self._lock:
            self.run(f"begin; {statement}", parameters)
            try:
                yield
            except UndoneError:
                self.run("rollback")
                raise
            except BaseException:
                self.close()
                raise
            self.run("commit")

    @contextlib.contextmanager
    def lent(self) -> Iterator[Engine]:
        """An engine over this connection, for transactions that other processes make too. No other thread uses it meanwhile.

        After an error, except those of Paceline, the connection is closed.
        """
        with self._lock:
            if self._cursor is None or self._acts_as != self.worker_id:
                self._open()
            connection = self._connection
            assert connection is not None, "it is open"
            if self._lent is None or self._lent[0] is not connection or self._lent[1] != self.worker_id:
                self._lent = connection, self.worker_id, over(connection, self.worker_id)
            connection.autocommit = False
            try:
                yield self._lent[2]
                connection.autocommit = True
            except PacelineError:
                connection.autocommit = True
                raise
            except BaseException:
                self.close()
                raise
            self._used_at = time.monotonic()
            if self._pooler is not None:  # only this needs a connection of its own
                self.close()

    def close(self) -> None:
        with self._lock:
            pooled, self._pooled = self._pooled, None
            if pooled is not None:
                pooled.close()
            connection, self._connection, self._cursor, self._lent = self._connection, None, None, None
            if connection is not None:
                self._closed.set()
                connection.close()

    def close_for_others(self) -> None:
        """Close the connection, and wait until the server has ended its process: until then, it counts towards max_connections."""
        with contextlib.suppress(OSError, psycopg2.Error), self._lock:
            if self._connection is None:
                return
            # The duplicate outlives the close: the server closes its end when the process there has ended.
            with socket.socket(fileno=os.dup(self._connection.fileno())) as server:
                self.close()
                server.settimeout(ENDS_WITHIN_S)
                while server.recv(1024):
                    pass

    def hold(self) -> None:
        """Let no other thread use or close the connection, until `release` in this thread or `forget` in a forked process."""
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def forget(self) -> None:
        """Leave the connection to the process that this one was forked from. psycopg2 closes it only in that process."""
        self._connection = self._cursor = self._lent = self._pooled = None
        self._lock = threading.RLock()

    def _dag(self, version_id: int) -> SerializedDag:
        return versions.parsed(version_id, self.value(versions.READ, (version_id,)))

    def _open(self) -> Cursor:
        if self._cursor is None:
            hold_s = min(self.settings.worker.idle_connection_seconds, BRIEFLY_S if self.is_contended else math.inf)
            self.is_contended = True  # until it is open
            session = {**SESSION, "paceline.actor": self.worker_id}
            with libpq_environment(self._environment):
                connection = connect(
                    self.settings, "paceline task", session, then=f"{DURABLE};{claims.NOTE_CRASH_FREE};{sql.STATEMENTS}"
                )
            self._connection, self._acts_as = connection, session["paceline.actor"]
            connection.autocommit = True
            self._adapt(connection)
            self._cursor, self.is_contended = connection.cursor(), False
            if hold_s:
                self._closed = closed = threading.Event()
                # Without a thread it stays open, as with idle_connection_seconds = 0.
                with contextlib.suppress(RuntimeError):
                    threading.Thread(target=self._close_idle, args=(closed, hold_s), name="idle-connection", daemon=True).start()
        if self._acts_as != self.worker_id:
            self._cursor.execute("select set_config('paceline.actor', %s, false)", (self.worker_id,))
            self._acts_as = self.worker_id
        return self._cursor

    def _adapt(self, connection: Connection) -> None:
        # Only XComs and states have columns of type json; others are jsonb.
        register_default_json(connection, loads=xcom.decode)

    def _close_idle(self, closed: threading.Event, hold_s: float) -> None:
        """Close the connection after `hold_s` seconds without a statement. The thread ends with the connection."""
        pause_s = hold_s
        while not closed.wait(pause_s):
            with self._lock:
                if closed.is_set():
                    return
                pause_s = self._used_at + hold_s - time.monotonic()
                if pause_s <= 0:
                    self.close()
                    return


class HotPath(WorkerConnection):
    """The statements that a pool process runs for each task. `place` is the number of the process in its worker, from 0."""

    def __init__(self, settings: Settings, worker_id: str, place: int = 0, pooler: str | None = None) -> None:
        super().__init__(settings, worker_id, pooler)
        self._place = place
        #: How many reports come before the next step is tried.
        self._without_steps = 0
        #: Whether the role of this process may close a run. None: not asked yet.
        self._may_close: bool | None = None

    def claim(self, ti_id: int, dispatch_id: str, is_repeated: bool = False) -> Claim | None:
        """queued -> running for exactly this dispatch; None if it cannot be claimed, as for a duplicate message.

        `is_repeated` says that this process got no answer to an earlier attempt. If that was stored, it counts.
        """
        claimed = self.objects(
            Claim,
            # For this transaction only: two statements in one message are one transaction.
            f"set local synchronous_commit = off; {sql.HOLD.execute}; {sql.CLAIM.execute}",
            {"ti_id": ti_id, "dispatch_id": dispatch_id, "worker": self.worker_id, "is_repeated": is_repeated},
        )
        if claimed and claimed[0].run_type == REPRODUCTION:
            return self._as_original(claimed[0])
        return claimed[0] if claimed else None

    def _as_original(self, claim: Claim) -> Claim:
        """The claim with what the tasks of the original of its run have seen."""
        (seen,) = self.dicts(SEEN_BY_ORIGINAL, (claim.dag_run_id,)) or ({},)
        return replace(claim, **seen)

    def report(
        self,
        claim: Claim,
        ending: Ending,
        plan: Plan,
        next_in_place: NextInPlace | None = None,
        *,
        aging: bool = False,
        is_locked: bool = False,
    ) -> Reported | Undecided | Refused:
        """running -> the end of the try, durably, with the moves of `plan`.

        With `next_in_place`, what gets the slots may run at once under that dispatch ID. `is_locked`: inside `locked`.
        """
        if plan.peer_joins:
            return Undecided(self._waiting(claim, plan.asked))
        in_place = plan.in_place and next_in_place is not None and not next_in_place.withdrawn
        parameters = {
            **_names(claim, plan.asked),
            **_end(ending),
            "worker": self.worker_id,
            "aging": aging,
            "task_nos": [decision.task_no for decision in plan.settled],
            "map_indexes": [decision.map_index for decision in plan.settled],
            "verdicts": [decision.state.value for decision in plan.settled],
            "reasons": [decision.reason for decision in plan.settled],
            "below_branch": [decision.task_no in plan.below_branch for decision in plan.settled],
            "successor": None if plan.successor is None else plan.successor + 1,
            "next_dispatch_id": str(uuid.uuid4()) if plan.passes_slots else None,
            "in_place_id": next_in_place.dispatch_id if next_in_place is not None and in_place else None,
            "line_in_place": plan.line_in_place,
            "place": self._place,
            "joins": plan.joins,
        }
        if self._without_steps:
            self._without_steps -= 1
        elif in_place and plan.is_step and not is_locked:
            if step := self._step(parameters):
                # It says that others wait: the pool and the run are as busy as before.
                following = _claim_in_place(claim, step[0])
                return Reported(pool_has_waiting=True, others_wait=True, moved=tuple(step), continues=following)
            # Nothing is stored: one with a higher rank waits, or the DAG is paused, and that lasts for a while.
            self._without_steps = WITHOUT_STEPS
        hold = "" if is_locked else f"{(sql.HOLD_MOVES if plan.settled else sql.HOLD).execute}; "
        answer = self.objects(ReportRow, f"{hold}{sql.REPORT.execute}", parameters)
        first, waiting = answer[0], frozenset(answer[0].waiting)
        if not waiting.issuperset(plan.joins):
            return Undecided(waiting)
        if first.others_wait is None:
            return self._refused(claim, ending, next_in_place)
        moved = tuple(row for row in answer if row.was_waiting is False)
        return Reported(
            pool_has_waiting=first.pool_has_waiting,
            others_wait=first.others_wait,
            moved=moved,
            slots_passed_to=next((row for row in answer if row.was_waiting), None),
            continues=next((_claim_in_place(claim, row) for row in answer if row.state is TaskState.RUNNING), None),
            waiting=waiting,
            all_moved=bool(first.run_goes_on) and len(moved) == len(plan.settled),
        )

    def _step(self, parameters: Mapping[str, Any]) -> list[MovedInPlace]:
        """Store a report as a step. Nothing is stored if this returns nothing. A pooler sends several at once."""
        with self._lock:
            if self._pooler is None:
                cursor = self.run(f"{sql.HOLD_MOVES.execute}; {sql.STEP.execute}", parameters)
            else:
                cursor = self._ask(self._pooler, None, {name: parameters[name] for name in sql.STEP.parameters})
            return rows.of_cursor(MovedInPlace, cursor)

    def suspend(self, claim: Claim, ending: Ending) -> Reported | Refused:
        """running -> up_for_reschedule or deferred, durably."""
        deferral = ending.deferral
        pool_has_waiting: bool | None = self.value(
            sql.SUSPEND.execute,
            {
                **_names(claim),
                **_end(ending),
                "resume": Json(ending.resume or {}),
                "classpath": deferral and deferral.classpath,
                "kwargs": Json(deferral.kwargs if deferral else {}),
                "file": deferral and deferral.file,
            },
        )
        if pool_has_waiting is None:
            return self._refused(claim, ending)
        return Reported(pool_has_waiting=pool_has_waiting, others_wait=True)

    @contextlib.contextmanager
    def locked(self, claim: Claim, plan: Plan, waiting: Collection[int] = ()) -> Iterator[JoinStates]:
        """A transaction with the claimed task instance and those that `plan` may move locked, in ID order.

        Returns the states around the joins, without those in `waiting`, which cannot be ready.
        """
        joins = [join for join in plan.joins if join not in waiting]
        tasks = [*joins, *plan.peer_joins, *(decision.task_no for decision in plan.settled)]
        with self.transaction(sql.LOCK_JOINS.execute, {**_names(claim), "tasks": tasks}):
            yield JoinStates(self._upstream_states(claim, joins, plan.asked), self._peer_states(claim, plan.peers))

    def needs_scheduler(self, claim: Claim, asked: Ranges) -> bool:
        """Whether one of these tasks is undecided although all its upstream tasks have ended, or the run may end."""
        needs: bool = self.value(sql.NEEDS_SCHEDULER.execute, _names(claim, asked))
        return needs

    def close_run(self, claim: Claim) -> RunAfter | None:
        """running -> success for the run of a reported try, if all its task instances have ended well; see close.sql.

        Does not wait for the disk: schedulers close it again if a crash undoes that. None without the right, or without the run.
        """
        if self._may_close is None:
            self._may_close = bool(self.value(MAY_CLOSE, ()))
        if not self._may_close:
            return None
        close = f"begin; set local synchronous_commit = off; {sql.HOLD_RUN.execute}; {sql.CLOSE_RUN.execute}; commit"
        found = self.objects(RunAfter, f"{close}; {sql.LOOK_AFTER.execute}", _names(claim))
        return found[0] if found else None

    def _waiting(self, claim: Claim, asked: Ranges) -> frozenset[int]:
        """The tasks with an upstream task that no worker has: this report cannot make them ready."""
        return frozenset(task_no for (task_no,) in self.read(sql.UNSTARTED.execute, _names(claim, asked)))

    def _upstream_states(self, claim: Claim, joins: Collection[int], asked: Ranges) -> Mapping[int, Counter[TaskState]]:
        """For each join, the number of its upstream task instances by state, without the claimed one."""
        states: dict[int, Counter[TaskState]] = {join: Counter() for join in joins}
        if joins:
            for task_no, state, instances in self.read(sql.UPSTREAM_STATES.execute, _names(claim, asked.of(joins))):
                states[task_no][TaskState(state)] = instances
        return states

    def _peer_states(self, claim: Claim, peers: Collection[int]) -> Mapping[int, TaskState]:
        """The states of the instances of these tasks with the map index of the claim, by task number."""
        if not peers:
            return {}
        parameters = {**_names(claim), "tasks": list(peers)}
        return {task_no: TaskState(state) for task_no, state in self.read(sql.PEER_STATES.execute, parameters)}

    def _refused(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None = None) -> Refused:
        """The answer to a report that the database did not accept. It may repeat one that was stored, but whose answer was lost."""
        moved = [] if next_in_place is None else self.objects(MovedInPlace, MOVED_IN_PLACE, (claim.pool, next_in_place.dispatch_id))
        ended = self.read(ENDED, (claim.id, claim.dispatch_id, ending.state.value))
        return Refused(bool(ended), _claim_in_place(claim, moved[0]) if moved else None)


def _names(claim: Claim, asked: Ranges = NO_RANGES) -> dict[str, object]:
    """The parameters that name the task instance and the asked tasks of its run. A statement takes those that it has."""
    return {
        "ti_id": claim.id,
        "dispatch_id": claim.dispatch_id,
        "map_index": claim.map_index,
        "dag_run_id": claim.dag_run_id,
        "version_id": claim.version_id,
        "tasks": asked.tasks,
        "lows": asked.lows,
        "highs": asked.highs,
    }


def _end(ending: Ending) -> dict[str, object]:
    decision = None if ending.skip is None else Json({"skip": list(ending.skip)})
    end = {"state": ending.state.value, "reason": ending.reason, "due_in_s": ending.delay_s}
    return {**end, "result": ending.result, "decision": decision}


def _claim_in_place(claim: Claim, row: MovedInPlace) -> Claim:
    """The claim of a task instance of the same run, which the report of `claim` moved to running."""
    assert row.dispatch_id is not None, "a running task instance has a dispatch"
    values = list(_of_claim(claim))
    for place, value in zip(OF_ROW.values(), _of_row(row), strict=True):
        values[place] = value
    values[RESUME] = None
    return Claim(*values)


def _before_fork() -> None:
    """Wait until no other thread is inside libpq or OpenSSL, whose locks would stay locked in the forked process."""
    _HELD.connections = []
    for each in list(_ALL):
        each.hold()
        _HELD.connections.append(each)


def _after_fork(leave: Callable[[WorkerConnection], None]) -> None:
    while _HELD.connections:
        leave(_HELD.connections.pop())


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(WorkerConnection.release),
    after_in_child=lambda: _after_fork(WorkerConnection.forget),
)
