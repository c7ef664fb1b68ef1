"""The hot path of a worker child: claim, report and follow as prepared statements on one connection of its own.

No engine, no ORM, no planning: a claim is one round trip that does not wait for the disk, a report with its follow is one
that does, as does everything else that is stored. A claim that a crash of PostgreSQL undoes is asserted again by the worker's
heartbeat (store/processes.still_held).
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, overload

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import Json, register_default_json

from scheduler.authoring import xcom
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.states import TaskState
from scheduler.store.dags import versions
from scheduler.store.db import fencing, sqlstates
from scheduler.store.db.database import connect
from scheduler.store.db.fencing import Writer
from scheduler.store.worker import crashes, shutdown
from scheduler.store.worker.claims import Claim, Ending, Moved, Moves, Reported, Undecided
from scheduler.store.worker.hot_statements import STATEMENTS

#: Returned by pull_xcom where nothing was stored (None is a value).
MISSING = object()
#: What is stored here outlives a crash also where the server's own setting would not have it so; a stricter one stays.
DURABLE = "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
PUSH_XCOM = fencing.guarded(
    "insert into xcom (task_instance_id, key, value) select id, %s, %s from current"
    " on conflict (task_instance_id, key) do update set value = excluded.value, created_at = now() returning key"
)
LABEL = fencing.guarded("update task_instance t set map_label = %s from current where t.id = current.id returning t.id")
CLEAR_XCOMS = fencing.guarded("delete from xcom x using current where x.task_instance_id = current.id returning x.key")


class HotPath:
    """One connection for the life of a pool child; after an error the next call opens a new one."""

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self.worker_id = worker_id
        self._acts_as: str | None = None
        self._settings = settings
        self._connection: Connection | None = None
        self._cursor: Cursor | None = None
        self._versions = versions.Versions()

    def claim(self, ti_id: int, dispatch_id: str) -> Claim | None:
        """queued -> running for exactly this dispatch; None if it is not there to be claimed (a duplicate), or not yet."""
        row = self._one(
            # For this transaction alone: two statements sent at once are one.
            "set local synchronous_commit = off; execute claim(%s, %s, %s, %s)",
            (ti_id, dispatch_id, self.worker_id, self._settings.worker.heartbeat_timeout),
        )
        return None if row is None else Claim(*row)

    def unstarted(self, dag_run_id: int, joins: Sequence[int], dag: SerializedDag) -> frozenset[int]:
        """Those of `joins` that wait for a task which no worker has; they cannot become ready by this report."""
        rows = self._all("execute unstarted(%s, %s::int[], %s::int[], %s::int[])", (dag_run_id, *_ranges(joins, dag)))
        return frozenset(row[0] for row in rows)

    @contextmanager
    def deciding(self, claim: Claim, joins: Sequence[int]) -> Iterator[None]:
        """A transaction that holds this task instance and `joins`, locked in id order."""
        self._execute(
            "begin; execute lock_joins(%s, %s, %s::int[], %s)",
            (claim.id, claim.dag_run_id, list(joins), claim.map_index),
        )
        try:
            yield
        except BaseException:
            self.close()
            raise
        self._execute("commit")

    def upstream_states(self, claim: Claim, joins: Sequence[int], dag: SerializedDag) -> dict[int, list[tuple[TaskState, int]]]:
        """By join: how many of its upstream task instances, other than the claimed one, are in which state."""
        states: dict[int, list[tuple[TaskState, int]]] = {join: [] for join in joins}
        if joins:
            rows = self._all(
                "execute upstream_states(%s, %s::int[], %s::int[], %s::int[], %s)",
                (claim.dag_run_id, *_ranges(joins, dag), claim.id),
            )
            for join, state, count in rows:
                states[join].append((TaskState(state or "none"), count))
        return states

    def peer_states(self, claim: Claim, tasks: Collection[int]) -> dict[int, TaskState]:
        """By task number: the instances of these tasks with the claimed one's map index."""
        rows = self._all("execute peer_states(%s, %s::int[], %s)", (claim.dag_run_id, list(tasks), claim.map_index))
        return {no: TaskState(state or "none") for no, state in rows}

    @overload
    def report(self, claim: Claim, ending: Ending, moves: Moves, *, aging: bool = False) -> Reported | None: ...
    @overload
    def report(
        self, claim: Claim, ending: Ending, moves: Moves, dag: SerializedDag, *, aging: bool = False
    ) -> Reported | Undecided | None: ...
    def report(
        self, claim: Claim, ending: Ending, moves: Moves, dag: SerializedDag | None = None, *, aging: bool = False
    ) -> Reported | Undecided | None:
        """running -> how it ended, durably, and `moves`; None if this dispatch no longer holds the task.

        Without `dag`, the DAG of the run, moves.joins and moves.left are not asked about.
        """
        rows = self._all(
            "execute report(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
            " %s::int[], %s::int[], %s::text[], %s::text[], %s::boolean[], %s, %s, %s, %s::int[], %s::int[], %s::int[], %s::int[])",
            (
                claim.id,
                claim.dispatch_id,
                ending.state.value,
                ending.reason,
                ending.delay_s,
                ending.result,
                self.worker_id,
                None if ending.skip is None else Json({"skip": list(ending.skip)}),
                claim.version_id,
                aging,
                [one.task_no for one in moves.decisions],
                [one.map_index for one in moves.decisions],
                [one.state.value for one in moves.decisions],
                [one.reason for one in moves.decisions],
                [one.task_no in moves.below_branch for one in moves.decisions],
                None if moves.successor is None else moves.successor + 1,
                moves.dispatch_id,
                claim.dag_run_id,
                *(([], [], []) if dag is None else _ranges([*moves.joins, *moves.left], dag)),
                [] if dag is None else list(moves.joins),
            ),
        )
        waiting, pool_has_waiting, others_wait = frozenset(rows[0][0]), *rows[0][1:3]
        if dag is not None and not waiting.issuperset(moves.joins):
            return Undecided(waiting)
        if others_wait is None:
            return None
        moved = tuple(_moved(row[4:]) for row in rows if row[3] is False)
        handed_on = next((_moved(row[4:]) for row in rows if row[3]), None)
        return Reported(pool_has_waiting, others_wait, moved, handed_on, waiting, len(moved) == len(moves.decisions))

    def suspend(self, claim: Claim, ending: Ending) -> bool | None:
        """running -> up_for_reschedule or deferred, durably; whether others wait for the slots, None if it was refused."""
        deferral = ending.deferral
        found = self._one(
            "execute suspend(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                claim.id,
                claim.dispatch_id,
                ending.state.value,
                ending.reason,
                ending.delay_s,
                Json(ending.resume or {}),
                deferral and deferral.classpath,
                Json(deferral.kwargs if deferral else {}),
                deferral and deferral.file,
            ),
        )
        return None if found is None else bool(found[0])

    def obey(self, claim: Claim) -> bool:
        """shutdown -> what was asked, once the user code has ended; False if this dispatch is not being stopped."""
        return bool(self._all(shutdown.OBEY.format(which="id = %s and dispatch_id = %s"), (claim.id, claim.dispatch_id)))

    def claim_again(self, claim: Claim) -> bool:
        """queued -> running once more for this dispatch, because a crash of PostgreSQL undid the claim; False if it did not."""
        claimed = self._one(
            "update task_instance set state = 'running', worker = %s, reason = null, started_at = %s"
            " where id = %s and dispatch_id = %s and state = 'queued' returning id",
            (self.worker_id, claim.started_at, claim.id, claim.dispatch_id),
        )
        return claimed is not None

    def ended_as(self, claim: Claim, state: TaskState) -> bool:
        """Whether this dispatch is already stored as ended so: the report before got through although its answer was lost."""
        found = self._one("select state from task_instance where id = %s and dispatch_id = %s", (claim.id, claim.dispatch_id))
        return found is not None and found[0] == state.value

    def dag(self, version_id: int) -> SerializedDag:
        """The DAG of a version, cached."""
        return self._versions.get(version_id, lambda: self._all(versions.READ, (version_id,))[0][0])

    def pull_xcom(self, dag_run_id: int, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """The stored value, MISSING if there is none."""
        row = self._one(
            "select x.value from task_instance t join xcom x on x.task_instance_id = t.id"
            " where t.dag_run_id = %s and t.task_id = %s and t.map_index = %s and x.key = %s",
            (dag_run_id, task_id, map_index, key),
        )
        return MISSING if row is None else row[0]

    def previous_success(self, dag_id: str, before: datetime) -> tuple[Any, ...] | None:
        """Data interval and start and end of the DAG's last successful run of an earlier logical date."""
        return self._one(
            "select data_interval_start, data_interval_end, started_at, ended_at from dag_run"
            " where dag_id = %s and logical_date < %s and state = 'success' order by logical_date desc limit 1",
            (dag_id, before),
        )

    def now(self) -> datetime:
        """The database's clock."""
        found: datetime = self._all("select clock_timestamp()", ())[0][0]
        return found

    def push_xcom(self, claim: Claim, key: str, json_text: str) -> None:
        """Store one value for a running task instance; StaleTryError."""
        self.write(claim.writer, PUSH_XCOM, (key, json_text))

    def label(self, claim: Claim, text: str) -> None:
        """Store the rendered map_index_template of a running task instance; StaleTryError."""
        self.write(claim.writer, LABEL, (text,))

    def clear_xcoms(self, claim: Claim) -> None:
        """Forget what earlier tries stored; StaleTryError."""
        self.write(claim.writer, CLEAR_XCOMS, ())

    def read(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement of another store module, such as external and variables."""
        return self._all(statement, parameters)

    def write(self, writer: Writer, statement: str, parameters: Sequence[Any]) -> int:
        """Run a statement that `fencing.guarded` made; how many rows it wrote. StaleTryError if it was refused."""
        found = self._one(statement, (*writer.key, *parameters))
        if found is None:
            raise fencing.stale(writer)
        return int(found[0])

    def close(self) -> None:
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            connection.close()

    def _open(self) -> Cursor:
        if self._cursor is None:
            self._connection = connect(
                self._settings,
                "paceline worker",
                # Statistics of a young or emptied table are worthless and every statement has its index, in the order it
                # asks for: look rows up one by one, and never plan again.
                # The task instances that a stopped child has locked must be free when its worker is taken for dead.
                "-c idle_in_transaction_session_timeout=5s"
                " -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_sort=off"
                " -c plan_cache_mode=force_generic_plan -c jit=off",
            )
            self._connection.autocommit = True
            # The only columns of type json hold XComs; others are jsonb.
            register_default_json(self._connection, loads=xcom.decode)
            cursor = self._connection.cursor()
            cursor.execute(f"{DURABLE};{crashes.NOTE};{STATEMENTS}")
            self._cursor, self._acts_as = cursor, None
        if self._acts_as != self.worker_id:
            self._cursor.execute("select set_config('paceline.actor', %s, false)", (self.worker_id,))
            self._acts_as = self.worker_id
        return self._cursor

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run one statement; after an error nothing of this connection is used again."""
        try:
            cursor = self._open()
            cursor.execute(statement, parameters)
        except psycopg2.Error as error:
            self.close()
            raise sqlstates.lost(error) or error from None
        return cursor

    def _one(self, statement: str, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
        rows = self._all(statement, parameters)
        return rows[0] if rows else None

    def _all(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._execute(statement, parameters).fetchall()


def _moved(row: tuple[Any, ...]) -> Moved:
    *columns, state, pool, pool_slots = row
    return Moved(*columns, TaskState(state), pool, pool_slots)  # type: ignore[call-arg]  # a row has the columns of Moved


def _ranges(joins: Sequence[int], dag: SerializedDag) -> tuple[list[int], list[int], list[int]]:
    rows = [(join, low, high) for join in joins for low, high in dag.upstream_ranges[join]]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
