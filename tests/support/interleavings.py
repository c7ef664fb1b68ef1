"""A statement that another session's change overlaps, these changes, and what must hold afterwards."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Engine, event

from paceline.exceptions import PacelineError
from paceline.states import RunState
from paceline.states import TaskState as S
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.store.actions import delete, mark
from scheduler.store.dags.versions import Versions
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.moves.fire import Fired, fire
from scheduler.store.moves.queue import dispatch_again
from scheduler.store.runs import integrity
from scheduler.store.upkeep import processes
from scheduler.store.worker.claims import Claim, Ending, Refused, Reported
from scheduler.store.worker.hot_path import HotPath
from support.run_actions import ALL, clear_, mark_
from support.scenario import Scenario, dag
from workers.task.follow import Follower

FREE = {"disable_bundle_versioning": True, "task": {"retries": 1}}
OLD: dict[str, list[str]] = {"a": [], "z": [], "b": ["a"], "join": ["b", "z"]}
#: Every number of OLD is that of another task.
NEW: dict[str, list[str]] = {"new": [], "a": [], "x": ["a"], "z": [], "b": ["x"], "join": ["b", "z"]}
WAITERS = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
ROWS = "select id, task_id, coalesce(state, 'none') as state from task_instance"
#: States that a task may only get once its upstream tasks have succeeded.
STARTS = {"scheduled", "queued", "running", "success"}


class Interleaving:
    """One run with the task `a`, a change, and a statement that overlaps it. `below` is added to the edges of both versions."""

    def __init__(self, scenario: Scenario, *, below: dict[str, list[str]] | None = None, **options: Any) -> None:
        self.scenario = scenario
        self.old, self.new = (dag("d", {**edges, **(below or {})}, **FREE, **options) for edges in (OLD, NEW))
        scenario.add(self.old)
        self.run = scenario.trigger("d", run_id="r")
        #: A session of a worker other than the scenario's, so that it can wait while the scenario goes on.
        self.use(HotPath(scenario.settings, scenario.worker_id))
        self.other: Engine = database.create(scenario.settings)
        #: The answer to the report of the statement.
        self.reported: Reported | Refused | None = None
        self.is_of_worker = True
        self.claimed: Claim | None = None
        #: What a person marked `a` as, which no worker changes.
        self.ends_as: str | None = None
        #: Whether the statement makes every task a success.
        self.marks_the_run = False
        #: Whether `a` has an XCom from before it was stopped.
        self.has_written = False
        #: Further things that must hold.
        self.checks: list[Callable[[], None]] = []
        scenario.turn()
        self.messages = {scenario.rows("select task_id from task_instance where id = %s", one[0])[0][0]: one
                         for one in scenario.messages()}  # fmt: skip
        scenario.sql("update pool set passes_slots_on = true")

    def use(self, hot: HotPath) -> None:
        self.hot = hot
        self.follower = Follower(hot, Publisher(self.scenario.settings), Wakeups(self.scenario.settings), enabled=True)

    def close(self) -> None:
        self.hot.close()
        self.other.dispose()

    def claim_a(self) -> Claim:
        claim = self.scenario.claim(self.messages["a"])
        assert claim is not None
        return claim

    @contextmanager
    def overlapped_by(self, change: Callable[["Interleaving"], Any], statement: Callable[[], Any]) -> Iterator[Any]:
        """Run the change up to its commit, start the statement, commit once it waits or has ended, and yield its result."""
        started = threading.Event()
        self.version_before = self.scenario.rows("select version_id from dag_run")[0][0]
        self.before = dict(self.scenario.rows("select task_id, coalesce(state, 'none') from task_instance"))
        self.runs_before = self.scenario.rows("select id from dag_run order by id")

        def commits(_: Connection) -> None:
            if started.is_set():
                return
            started.set()
            for _attempt in range(300):
                if future.done() or self.scenario.rows(WAITERS)[0][0]:
                    return
                threading.Event().wait(0.01)

        with ThreadPoolExecutor(1) as threads:
            go = threading.Event()

            def wait_and_run() -> Any:
                assert go.wait(30)
                with suppress(PacelineError):
                    return statement()

            future = threads.submit(wait_and_run)

            def starts(connection: Connection) -> None:
                go.set()
                commits(connection)

            event.listen(self.other, "commit", starts)
            with suppress(PacelineError):
                change(self)
            go.set()
            yield future.result(60)

    def judge(self) -> None:
        """Check that version, number and task belong together, and that nothing started too early or twice."""
        scenario = self.scenario
        for claim in (self.claimed, self.reported and self.reported.continues):
            if claim is not None:
                assert scenario.hot.dag(claim.version_id).number.get(claim.task_id) == claim.task_no, claim
        rows = scenario.rows(
            "select t.task_id, t.task_no, coalesce(t.state, 'none'), r.version_id, s.is_paused, t.worker, t.max_tries, t.queued_at"
            "  from task_instance t join dag_run r on r.id = t.dag_run_id join dag_schedule s on s.dag_id = r.dag_id"
        )
        states = {name: state for name, _, state, *_ in rows}
        starts = STARTS - {"success"} if self.marks_the_run else STARTS
        for name, number, state, version, is_paused, worker, *_ in rows:
            planned = scenario.hot.dag(version)
            if state != "removed":
                assert planned.tasks[number].task_id == name, (name, number, states)
            began = state in starts and self.before.get(name, "none") not in STARTS
            if began and name in planned.number and planned.tasks[planned.number[name]].trigger_rule == "all_success":
                above = {up: states[up] for up in planned.tasks[planned.number[name]].upstream}
                assert set(above.values()) <= {"success"}, (name, state, above)
            assert not (began and is_paused and state in {"queued", "running"}), f"{name} became {state} in a paused DAG"
            if state == "running" and self.before.get(name) != "running":
                assert scenario.rows("select 1 from process where id = %s and stopped_at is null", worker), f"{name} is lost"
        if self.claimed is not None:
            assert self.claimed.dispatch_id == self.messages["a"][1], "claimed under a dispatch that another process sent"
        assert not scenario.rows(
            "select 1 from task_instance where requested_state is not null and state is distinct from 'shutdown'"
        ), states
        written = {state for (state,) in scenario.rows("select t.state from xcom join task_instance t on t.id = task_instance_id")}
        assert self.has_written or written <= {"queued", "running", "shutdown", "success"}, f"a stale try wrote: {states}"
        left = scenario.rows(
            "select t.task_id from task_instance t join dag_run r on r.id = t.dag_run_id and r.state in ('success', 'failed')"
            " where t.state in ('running', 'queued', 'scheduled')"
        )
        assert not left, f"the run of {left} has ended: {states}"
        if (ends := self.ends_as) and states:
            assert states["a"] in {ends, "shutdown"}, f"a was marked {ends}, and is {states['a']}"
        if scenario.rows("select 1 from dag_schedule where is_paused"):
            assert scenario.rows("select id from dag_run order by id") in ([], self.runs_before), "a paused DAG got a run"
        for check in self.checks:
            check()

    def end(self) -> None:
        """The run reaches its end: nothing is stuck, and each task ran."""
        scenario = self.scenario
        scenario.sql("update dag_schedule set is_paused = false")
        scenario.sql("update process set heartbeat_at = clock_timestamp() where stopped_at is null")
        for claim in (self.claimed, self.reported and self.reported.continues):
            if claim is not None and not scenario.follower.report(claim, Ending(S.SUCCESS)).is_stored:
                scenario.follower.end_as_requested(claim)
        left = scenario.rows("select t.id, dispatch_id::text from task_instance t where state in ('running', 'shutdown')")
        for ti_id, dispatch_id in left:
            transact(scenario.engine, processes.fail_lost, ti_id, dispatch_id, "its process ended", at_once=True)
        scenario.hot.worker_id = processes.register(scenario.engine, kind="worker", name="w2", host="h", pid=2, queues=["default"])
        scenario.worker_id = scenario.hot.worker_id
        transact(scenario.engine, dispatch_again)
        scenario.sql("update deferral set waiter = null")
        for ti_id, dispatch_id in scenario.rows("select id, dispatch_id::text from task_instance where state = 'deferred'"):
            transact(scenario.engine, fire, [Fired(ti_id=ti_id, dispatch_id=dispatch_id, outcome={"event": 1})])
        for ti_id, dispatch_id in scenario.rows("select id, dispatch_id::text from task_instance where state = 'queued'"):
            claim = scenario.claim((ti_id, dispatch_id))
            if claim is not None:
                assert scenario.follower.report(claim, Ending(S.SUCCESS)).is_stored
        scenario.run_to_end(turns=40)
        states = scenario.states(self.run)
        if "down" in states and states["z"] == "success":
            assert states["down"] == "success", f"the setup succeeded, and its teardown did not run: {states}"


def _locked(connection: Connection) -> None:
    connection.exec_driver_sql("select 1 from task_instance order by id for no key update")


def _switch(one: Interleaving) -> None:
    one.scenario.add(one.new)
    transact(one.other, integrity.follow_newest, one.run, Versions(), default_queue="default")


def _as_other(one: Interleaving) -> Any:
    return SimpleNamespace(engine=one.other, settings=one.scenario.settings)


def _mark(one: Interleaving, state: S) -> None:
    mark_(_as_other(one), state, "a")
    one.ends_as = state.value if one.is_of_worker and one.before["a"] != "success" else None


def _pause(one: Interleaving) -> None:
    with one.other.begin() as connection:
        _locked(connection)
        connection.exec_driver_sql("update dag_schedule set is_paused = true")


def _requeue(one: Interleaving) -> None:
    with one.other.begin() as connection:
        _locked(connection)
        connection.exec_driver_sql(
            "update task_instance set dispatch_id = gen_random_uuid(), queued_at = clock_timestamp() where state = 'queued'"
        )


def _expire(one: Interleaving) -> None:
    with one.other.begin() as connection:
        processes.expire(connection, [one.scenario.worker_id], why="has ended")
        _locked(connection)


#: What another session commits while a statement waits.
CHANGES: dict[str, Callable[[Interleaving], Any]] = {
    "version switch": _switch,
    "clear": lambda one: clear_(_as_other(one), ALL),
    "mark": lambda one: _mark(one, S.SUCCESS),
    "mark failed": lambda one: _mark(one, S.FAILED),
    "pause": _pause,
    "delete": lambda one: transact(one.other, delete.delete_run, "d", "r"),
    "expire": _expire,
    "cancel": lambda one: transact(one.other, mark.mark_run, "d", "r", RunState.FAILED),
    "requeue": _requeue,
}
