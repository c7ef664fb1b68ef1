"""Deferred task instances and the waiters that await their triggers, without worker processes."""

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from support.deferred import running_waiter
from support.run_actions import clear_, mark_
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.authoring import deferral
from paceline.states import TaskState
from paceline.triggers import DateTimeTrigger, ExternalTrigger
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs
from scheduler.store.upkeep import processes
from scheduler.store.worker import deferrals, external_runs, xcoms
from scheduler.store.worker.claims import Claim, Deferral, Ending

MANY = 500
WAITS_FOR_LOCK = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def deferred(trigger: Any, *, timeout_s: float | None = None, file: str | None = None) -> Ending:
    classpath, kwargs = deferral.serialized(trigger)
    return Ending(
        TaskState.DEFERRED,
        delay_s=timeout_s,
        resume={"method": "go_on", "kwargs": {"a": 1}},
        deferral=Deferral(classpath=classpath, kwargs=kwargs, file=file),
    )


def at_once() -> DateTimeTrigger:
    return DateTimeTrigger(datetime.now(UTC) - timedelta(seconds=1))


def never() -> DateTimeTrigger:
    return DateTimeTrigger(datetime.now(UTC) + timedelta(hours=1))


def claim_all(scenario: Scenario) -> list[Claim]:
    return [claim for message in scenario.messages() if (claim := scenario.claim(message)) is not None]


def defer_one(scenario: Scenario, trigger: Any, *, push: Mapping[str, str] | None = None, **options: Any) -> Claim:
    """A run of one task, which has pushed these XComs and deferred."""
    scenario.start(chain("c", 1), run_id="r")
    (claim,) = claim_all(scenario)
    for key, text in (push or {}).items():
        xcoms.push(scenario.hot, claim, key, text)
    assert scenario.follower.report(claim, deferred(trigger, **options)).is_stored
    return claim


def resumed(scenario: Scenario) -> Claim:
    """The claim of the dispatch that goes on, once there is one."""
    found: list[Claim] = []

    def there() -> bool:
        scenario.turn()
        found.extend(claim_all(scenario))
        return bool(found)

    eventually(there, timeout=20, message=lambda: str(scenario.states()))
    return found[0]


def test_a_fired_trigger_wakes_its_task_in_the_same_try(scenario: Scenario) -> None:
    first = defer_one(scenario, at_once(), push={"kept": "1"})

    with running_waiter(scenario.settings):
        again = resumed(scenario)

    assert again.resume is not None and again.resume["method"] == "go_on" and again.resume["kwargs"] == {"a": 1}
    assert isinstance(deferral.decode(again.resume["event"]), datetime)
    assert (again.try_number, again.started_at) == (first.try_number, first.started_at)
    assert again.dispatch_id != first.dispatch_id
    assert scenario.rows("select 1 from deferral") == []
    assert scenario.rows("select key from xcom") == [("kept",)]


def test_500_tasks_succeed_whose_triggers_fire_at_the_same_time(make_many: Scenario) -> None:
    """A report for an earlier dispatch never fails the dispatch that continues."""
    scenario = make_many
    refused: list[Claim] = []

    def report(claim: Claim, ending: Ending) -> None:
        if not scenario.follower.report(claim, ending).is_stored:
            refused.append(claim)

    def work() -> bool:
        scenario.turn()
        for claim in claim_all(scenario):
            report(claim, deferred(at_once()) if claim.resume is None else Ending(TaskState.SUCCESS))
        return scenario.rows("select 1 from dag_run where state <> 'success'") == []

    with running_waiter(scenario.settings):
        eventually(work, timeout=120, message=lambda: str(scenario.rows("select state, count(*) from task_instance group by 1")))

    assert refused == []
    assert scenario.rows("select state, try_number, count(*) from task_instance group by 1, 2") == [("success", 1, MANY)]
    assert scenario.rows("select count(*) from task_try") == [(0,)]


@pytest.fixture
def make_many(settings: Settings) -> Any:
    core = settings.core.model_copy(update={"parallelism": 1000})
    own_scenario = Scenario(settings.model_copy(update={"core": core}))
    own_scenario.sql("update pool set slots = 1000")
    own_scenario.triggered(dag("many", {f"t{number}": () for number in range(MANY)}), run_id="r")
    yield own_scenario
    own_scenario.close()


def test_a_trigger_that_does_not_fire_in_time_resumes_with_that(scenario: Scenario) -> None:
    defer_one(scenario, never(), timeout_s=0.01)

    with running_waiter(scenario.settings) as waiter:
        again = resumed(scenario)
        eventually(lambda: not waiter._running)

    assert again.resume is not None and "event" not in again.resume and again.resume["timed_out"] is True
    assert scenario.rows("select 1 from deferral") == []


@pytest.mark.parametrize(
    ("classpath", "message"),
    [
        ("paceline.triggers.Missing", "has no trigger class Missing"),
        ("nowhere_to_be_found.Trigger", "no module of the trigger class"),
        ("paceline.triggers.DateTimeTrigger", "unexpected keyword argument 'nonsense'"),
    ],
)
def test_a_trigger_that_cannot_be_created_fails_its_task_with_a_reason(scenario: Scenario, classpath: str, message: str) -> None:
    scenario.start(chain("c", 1), run_id="r")
    (claim,) = claim_all(scenario)
    ending = Ending(TaskState.DEFERRED, resume={"method": "m"}, deferral=Deferral(classpath=classpath, kwargs={"nonsense": 1}))
    assert scenario.follower.report(claim, ending).is_stored

    with running_waiter(scenario.settings):
        again = resumed(scenario)

    assert again.resume is not None and message in again.resume["error"]


TRIGGERS = """
import asyncio
import time
from pathlib import Path
from dataclasses import dataclass
from paceline.triggers import BaseTrigger, TriggerEvent

class Fires(BaseTrigger):
    def __init__(self, value):
        self.value = value
    async def run(self):
        yield TriggerEvent({"value": self.value})

class Raises(Fires):
    async def run(self):
        raise ValueError(f"no {self.value}")
        yield

class Exits(Fires):
    async def run(self):
        raise SystemExit(3)
        yield

class Ends(Fires):
    async def run(self):
        if self.value is None:
            yield

class Blocks(Fires):
    async def run(self):
        time.sleep(1.6)
        yield TriggerEvent("late")

@dataclass(frozen=True, slots=True)
class Waits:
    value: int
    async def wait(self):
        return self.value

class Stays(Fires):
    async def run(self):
        Path("FOLDER/started").touch()
        await asyncio.Event().wait()
        yield
    async def on_kill(self):
        Path("FOLDER/killed").touch()
        raise ValueError("only logged")

class Nul(Fires):
    async def run(self):
        yield TriggerEvent("a\\0b")
"""


def defer_in_file(scenario: Scenario, kind: str, **options: Any) -> Claim:
    """Defer to a class of a DAG file."""
    from scheduler.dagfiles.loaded_files import LoadedFiles

    folder = scenario.settings.dags_folder
    (folder / "own.py").write_text(TRIGGERS.replace("FOLDER", str(folder)))
    module = LoadedFiles(scenario.settings.dags_folder).module("own.py")
    return defer_one(scenario, _made(getattr(module, kind)), file="own.py", **options)


def _made(kind: type) -> Any:
    made: Any = kind(7)
    if not hasattr(made, "wait"):
        path = f"{kind.__module__}.{kind.__qualname__}"
        made.serialize = lambda: (path, {"value": 7})
    return made


@pytest.mark.parametrize(("kind", "event"), [("Fires", {"value": 7}), ("Waits", 7), ("Blocks", "late")])
def test_a_trigger_class_of_a_dag_file_is_found_by_its_path(
    scenario: Scenario, kind: str, event: Any, caplog: pytest.LogCaptureFixture
) -> None:
    defer_in_file(scenario, kind)

    with running_waiter(scenario.settings):
        again = resumed(scenario)

    assert again.resume is not None and again.resume["event"] == event
    blocked = [record.getMessage() for record in caplog.records if "blocks all other triggers" in record.getMessage()]
    assert bool(blocked) is (kind == "Blocks")
    assert all(f".{kind} of c.t000, run r" in one for one in blocked)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("Raises", "ValueError: no 7"), ("Exits", "SystemExit: 3"), ("Ends", "ended without an event"), ("Nul", "NUL character")],
)
def test_an_error_of_a_trigger_reaches_its_task(scenario: Scenario, kind: str, message: str) -> None:
    defer_in_file(scenario, kind)

    with running_waiter(scenario.settings):
        again = resumed(scenario)

    assert again.resume is not None and message in again.resume["error"]


def test_a_waiter_drops_triggers_without_a_waiting_task(settings: Settings) -> None:
    quick = settings.model_copy(update={"waiter": settings.waiter.model_copy(update={"heartbeat_sec": 0.1})})
    scenario = Scenario(quick)
    defer_one(scenario, never())

    with running_waiter(quick) as waiter:
        eventually(lambda: len(waiter._running) == 1)
        scenario.sql("update task_instance set state = 'skipped', ended_at = now(), due_at = null where state = 'deferred'")
        eventually(lambda: not waiter._running and not scenario.rows("select 1 from deferral"))

    scenario.close()


@pytest.mark.parametrize("stopped_by", ["mark", "clear", "timeout", "end of the waiter", "another waiter"])
def test_a_trigger_ends_its_external_work_if_its_task_is_stopped(
    settings: Settings, stopped_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    quick = settings.model_copy(update={"waiter": settings.waiter.model_copy(update={"heartbeat_sec": 0.1})})
    scenario, folder = Scenario(quick), settings.dags_folder
    defer_in_file(scenario, "Stays", timeout_s=6.0 if stopped_by == "timeout" else 600.0)
    stops: dict[str, Callable[[], object]] = {
        "mark": lambda: mark_(scenario, TaskState.FAILED, "t000", runs=Runs(dag_id="c")),
        "clear": lambda: clear_(scenario, dag_id="c"),
        "timeout": lambda: resumed(scenario),
        "another waiter": lambda: scenario.sql("update deferral set waiter = 'other'"),
    }

    with running_waiter(quick) as waiter:
        eventually((folder / "started").exists)
        if stopped_by in stops:
            stops[stopped_by]()
            eventually(lambda: not waiter._running)
        if stopped_by in {"mark", "clear"}:
            eventually(lambda: "only logged" in caplog.text)

    assert (folder / "killed").exists() == (stopped_by in {"mark", "clear"})
    scenario.close()


def test_triggers_of_a_lost_waiter_are_taken_over(scenario: Scenario) -> None:
    claim = defer_one(scenario, at_once())
    dead = processes.register(scenario.engine, kind="waiter", name="dead", host="h", pid=1)
    assert [one.dispatch_id for one in transact(scenario.engine, deferrals.claim, dead, limit=10)] == [claim.dispatch_id]
    scenario.sql("update process set heartbeat_at = now() - interval '1 hour' where id = %s", dead)

    with running_waiter(scenario.settings):
        again = resumed(scenario)

    assert again.resume is not None and "event" in again.resume
    # Once declared lost, it cannot take anything.
    assert transact(scenario.engine, deferrals.claim, dead, limit=10) == []


def test_a_waiter_that_was_declared_lost_continues_under_a_new_id(settings: Settings) -> None:
    quick = settings.model_copy(update={"waiter": settings.waiter.model_copy(update={"heartbeat_sec": 0.1})})
    scenario = Scenario(quick)
    defer_one(scenario, never())

    with running_waiter(quick) as waiter:
        eventually(lambda: len(waiter._running) == 1)
        former = waiter.waiter_id

        def is_declared_dead() -> bool:
            # Repeated, since a heartbeat may come between the update and the turn.
            scenario.sql("update process set heartbeat_at = now() - interval '1 hour' where id = %s", former)
            scenario.turn()
            return waiter.waiter_id != former

        eventually(is_declared_dead)
        eventually(lambda: scenario.rows("select waiter from deferral") == [(waiter.waiter_id,)])

    assert scenario.rows("select waiter from deferral") == [(None,)], "an orderly end gives back what was awaited"
    scenario.close()


def test_a_waiter_awaits_no_more_than_its_capacity(settings: Settings) -> None:
    small = settings.model_copy(update={"waiter": settings.waiter.model_copy(update={"capacity": 2})})
    scenario = Scenario(small)
    scenario.start(dag("few", dict.fromkeys("abc", ())), run_id="r")
    for claim in claim_all(scenario):
        assert scenario.follower.report(claim, deferred(never())).is_stored

    with running_waiter(small, "one") as one:
        eventually(lambda: len(one._running) == 2)
        with running_waiter(small, "other") as other:
            eventually(lambda: len(other._running) == 1)
        assert len(one._running) == 2

    scenario.close()


def test_external_triggers_share_one_query(scenario: Scenario) -> None:
    other = scenario.start(dag("other", {"a": (), "b": ()}), run_id="r")
    claims = sorted(claim_all(scenario), key=lambda one: one.task_id)
    scenario.start(dag("waits", dict.fromkeys(("x", "y", "z"), ())), run_id="r")
    targets = {
        "x": [{"dag_id": "other", "run_id": "r", "task_id": "a"}],
        "y": [{"dag_id": "other", "run_id": "r", "task_id": "b"}, {"dag_id": "other", "run_id": "r", "task_id": "a"}],
        "z": [{"dag_id": "other", "run_id": "r"}],
    }
    for claim in claim_all(scenario):
        trigger = ExternalTrigger(targets[claim.task_id], allowed_states=["success"], failed_states=["failed"])
        assert scenario.follower.report(claim, deferred(trigger)).is_stored

    with running_waiter(scenario.settings) as waiter:
        queries = _asked(waiter._engine)
        eventually(lambda: len(waiter._running) == 3)
        assert scenario.follower.report(claims[0], Ending(TaskState.SUCCESS)).is_stored
        assert _event(scenario)["x"] == "done"
        assert scenario.follower.report(claims[1], Ending(TaskState.FAILED)).is_stored
        events = _event(scenario, wanted=2)

    assert events == {"y": "failed", "z": "failed"}
    assert max(queries) == 3, "the run and two tasks, each asked once for all three triggers"
    assert scenario.run_state(other) == "failed"


def _asked(engine: Engine) -> list[int]:
    """The number of targets of each query for the states of other runs."""
    counts: list[int] = []

    def count(_: object, cursor: object, statement: str, parameters: Any, *more: object) -> None:
        if statement == external_runs.RUNS:
            counts.append(len(parameters[0]))

    event.listen(engine, "before_cursor_execute", count)
    return counts


def _event(scenario: Scenario, wanted: int = 1) -> dict[str, str]:
    found: dict[str, str] = {}

    def there() -> bool:
        scenario.turn()
        for claim in claim_all(scenario):
            assert claim.resume is not None
            found[claim.task_id] = claim.resume["event"]["verdict"]
        return len(found) >= wanted

    eventually(there, timeout=20)
    return found


def test_a_waiter_that_stops_releases_a_claim_that_is_being_stored(scenario: Scenario) -> None:
    defer_one(scenario, never())
    stopping = processes.register(scenario.engine, kind="waiter", name="stopping", host="h", pid=1)
    with ThreadPoolExecutor(1) as pool, scenario.engine.connect() as claiming:
        assert len(deferrals.claim(claiming, stopping, limit=10)) == 1
        stopped = pool.submit(transact, scenario.engine, processes.stop, stopping)
        eventually(lambda: scenario.rows(WAITS_FOR_LOCK) == [(1,)])
        claiming.commit()
        assert stopped.result(timeout=20) == 1

    assert scenario.rows("select waiter from deferral") == [(None,)]


def test_a_waiter_claims_nothing_while_its_end_is_being_stored(scenario: Scenario) -> None:
    defer_one(scenario, never())
    stopping = processes.register(scenario.engine, kind="waiter", name="stopping", host="h", pid=1)
    with ThreadPoolExecutor(1) as pool, scenario.engine.connect() as ending:
        processes.stop(ending, stopping)
        claimed = pool.submit(transact, scenario.engine, deferrals.claim, stopping, limit=10)
        eventually(lambda: scenario.rows(WAITS_FOR_LOCK) == [(1,)])
        ending.commit()
        assert claimed.result(timeout=20) == []

    assert scenario.rows("select waiter from deferral") == [(None,)]


def test_triggers_of_a_claim_whose_answer_was_lost_are_awaited(scenario: Scenario, tmp_path: Path) -> None:
    defer_one(scenario, at_once())
    faults = {fault_points.FAULTS: "await.committed=raise@1", fault_points.FOLDER: str(tmp_path)}
    fault_points.arm(faults, scenario.settings.database_url)
    try:
        with running_waiter(scenario.settings):
            assert resumed(scenario).resume is not None
    finally:
        fault_points.arm({}, scenario.settings.database_url)

    assert "await.committed raise" in (tmp_path / "struck").read_text()


DEFERS = """
from datetime import timedelta
from paceline import dag
from paceline.sensors import WaitSensor

@dag(schedule=None)
def waits():
    WaitSensor(task_id="short", time_to_wait=timedelta(seconds=0.5), deferrable=True)
    WaitSensor(task_id="long", time_to_wait=timedelta(hours=1), deferrable=True)
waits()
"""


def test_a_stack_with_a_waiter_serves_deferred_tasks_and_gives_them_back_when_it_stops(stack_factory: Any) -> None:
    stack = stack_factory(dags={"waits.py": DEFERS}, schedulers=1, workers=[("default", 1)], waiters=1)
    eventually(lambda: stack.cli("dags", "trigger", "waits", "--run-id", "r").returncode == 0, timeout=40, interval=1.0)

    def states() -> dict[str, str]:
        return {task["task_id"]: task["state"] for task in stack.json("runs", "show", "waits", "r")["tasks"]}

    eventually(lambda: states() == {"short": "success", "long": "deferred"}, timeout=40, interval=0.5, message=stack.logs)
    assert stack.cli("alive", "waiter").returncode == 0
    assert any(check["check"] == "waiters" and check["ok"] for check in stack.json("doctor")["checks"])

    stack.kill("waiter-1", signal.SIGTERM)

    eventually(lambda: "stopped" in stack.supervisor.log_tail("waiter-1"))
    # Its supervisor starts another one, which takes over at once.
    holder = (
        "select p.stopped_at is null, (select count(*) from process where kind = 'waiter')"
        " from deferral d join process p on p.id = d.waiter"
    )
    engine = database.create(stack.settings)

    def taken_over() -> bool:
        with engine.connect() as connection:
            return connection.exec_driver_sql(holder).all() == [(True, 2)]

    eventually(taken_over, timeout=20, message=stack.logs)
    engine.dispose()
