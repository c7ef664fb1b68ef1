"""Tasks that a pool process continues with in place: recorded, stopped, counted and shown like any other, and fair to others."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.messaging.publisher import celery_app
from scheduler.process import fault_points
from scheduler.store.actions import mark
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks

from ..conftest import SENT, wait_for

#: Finds a pool process that has a connection.
CONNECTED = "select from pg_stat_activity where application_name = 'paceline task' and datname = current_database()"
#: A budget that no test uses up.
LONG = {"PACELINE_WORKER_IN_PLACE_SECONDS": "60"}
ROW = """
import os, time
from datetime import timedelta
with DAG("d", schedule=None, default_args={{"retries": 1, "retry_delay": 0.1}}):
    @task
    def first():
        {first}

    @task
    def second(ti):
        {second}

    first() >> second() >> task(task_id="third")(lambda: None)()
"""


@pytest.fixture(scope="module")
def worker_options() -> dict[str, Any]:
    return {**LONG}


def row(first: str = "pass", second: str = "pass") -> str:
    return ROW.format(first=first, second=second)


def chain(length: int, body: str = "None") -> str:
    return f"""
    import os
    with DAG("d", schedule=None):
        chain(*[task(task_id=f"t{{n:03}}")(lambda: {body})() for n in range({length})])
    """


def published(bench: Any) -> int:
    """How many times a message was sent."""
    return int(bench.scenario.broker.info("commandstats").get("cmdstat_lpush", {"calls": 0})["calls"])


def tries(bench: Any) -> list[tuple[Any, ...]]:
    """Task, number and reason of each try that was followed by another."""
    statement = "select t.task_id, y.try_number, y.reason from task_try y join task_instance t on t.id = y.task_instance_id"
    return [tuple(found) for found in bench.scenario.rows(statement)]


def test_a_chain_takes_one_message(shared_bench: Any) -> None:
    before = published(shared_bench)

    run = shared_bench.run(chain(10, "os.getpid()"))

    assert set(shared_bench.scenario.states(run).values()) == {"success"}
    assert published(shared_bench) - before == 1
    assert "t004" in shared_bench.log("t004").splitlines()[0]
    assert str(shared_bench.column("t004", "dispatch_id")) in shared_bench.log("t004").splitlines()[0]
    assert "success" in shared_bench.last_line("t004")


def test_without_a_budget_each_task_takes_a_message(bench: Any) -> None:
    bench.worker(PACELINE_WORKER_IN_PLACE_SECONDS="0")
    before = published(bench)

    bench.run(chain(5))

    assert published(bench) - before == 5


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("pass", "ti.try_number == 1 and os.kill(os.getpid(), 9)", "SIGKILL"),
        ("pass", "ti.try_number == 1 and os._exit(3)", "exited with code 3"),
        ("pass", "ti.try_number == 1 and os.kill(os.getpid(), 11)", "SIGSEGV"),
    ],
)
def test_a_death_is_that_of_the_task_that_ran(shared_bench: Any, first: str, second: str, reason: str) -> None:
    run = shared_bench.run(row(first, second))

    assert set(shared_bench.scenario.states(run).values()) == {"success"}
    ((task_id, number, why),) = tries(shared_bench)
    assert (task_id, number) == ("second", 1)
    assert reason in why
    assert reason in shared_bench.last_line("second")
    assert "success" in shared_bench.last_line("first")


@pytest.mark.parametrize(
    ("point", "retried"),
    [("continue.before", "first"), ("report.after", "second"), ("continue.after", "second"), ("report.before", "first")],
)
def test_a_death_between_two_tasks_is_that_of_the_task_recorded_as_running(
    bench: Any, tmp_path: Path, point: str, retried: str
) -> None:
    (tmp_path / "plan").write_text(f"{point}=kill@1")
    bench.worker(**LONG, **{fault_points.FAULTS: f"@{tmp_path / 'plan'}", fault_points.FOLDER: str(tmp_path)})

    run = bench.run(row())

    assert set(bench.scenario.states(run).values()) == {"success"}
    ((task_id, number, why),) = tries(bench)
    assert (task_id, number) == (retried, 1)
    assert "SIGKILL" in why


def test_an_error_after_the_report_does_not_lose_the_task_that_continues(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("report.after=raise@1,follow.published=raise@2")
    bench.worker(**LONG, **{fault_points.FAULTS: f"@{tmp_path / 'plan'}", fault_points.FOLDER: str(tmp_path)})
    before = published(bench)

    run = bench.run(chain(5))

    assert set(bench.scenario.states(run).values()) == {"success"}
    assert tries(bench) == []
    assert published(bench) - before == 1
    assert (tmp_path / "struck").read_text().count("raise") == 2


def test_a_time_limit_ends_a_task_in_place(shared_bench: Any) -> None:
    source = row(second="time.sleep(60)").replace(
        "@task\n    def second", "@task(execution_timeout=timedelta(seconds=0.2), retries=0)\n    def second"
    )

    run = shared_bench.run(source)

    assert shared_bench.scenario.states(run) == {"first": "success", "second": "failed", "third": "upstream_failed"}
    assert "execution_timeout" in shared_bench.column("second", "reason")


def test_a_task_in_place_that_is_marked_is_stopped(shared_bench: Any) -> None:
    shared_bench.dag(row(second="time.sleep(60)"))
    run = shared_bench.scenario.trigger("d", run_id="r1")
    shared_bench.wait(run, second="running")

    transact(shared_bench.scenario.engine, mark.mark, Runs(dag_id="d"), Tasks(task_ids=("second",)), TaskState.SUCCESS)
    shared_bench.wait(run)

    assert set(shared_bench.scenario.states(run).values()) == {"success"}
    assert tries(shared_bench) == []


def test_a_failed_task_in_place_is_tried_again(shared_bench: Any) -> None:
    run = shared_bench.run(row(second="1 / (ti.try_number - 1)"))

    assert set(shared_bench.scenario.states(run).values()) == {"success"}
    ((task_id, _, why),) = tries(shared_bench)
    assert task_id == "second"
    assert "ZeroDivisionError" in why


def test_a_task_that_closes_all_files_of_its_process_ends_it_before_the_next_task(shared_bench: Any) -> None:
    run = shared_bench.run(row("os.closerange(3, 1000)").replace('"retries": 1', '"retries": 0'))

    assert shared_bench.scenario.states(run) == {"first": "success", "second": "success", "third": "success"}


def test_a_change_of_a_task_to_the_conf_of_its_run_is_not_seen_by_the_next_task(shared_bench: Any) -> None:
    shared_bench.dag("""
    with DAG("d", schedule=None):
        @task
        def change(dag_run, conf):
            dag_run.conf["names"].append("b")
        @task
        def read(dag_run):
            return dag_run.conf
        change() >> read()
    """)
    before = published(shared_bench)

    run = shared_bench.scenario.trigger("d", run_id="r1", conf={"names": ["a"]})
    shared_bench.wait(run)

    assert shared_bench.scenario.rows("select value from xcom") == [({"names": ["a"]},)]
    assert published(shared_bench) - before == 1


def test_a_draining_worker_continues_with_nothing(bench: Any) -> None:
    go = bench.folder / "go"
    worker = bench.worker(**LONG)
    bench.dag(row(first=wait_for(go)))
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, first="running")
    eventually(lambda: bench.log_path("first").exists())

    worker.signal(signal.SIGTERM)
    eventually(lambda: "stopping: 1 tasks" in worker.output)
    go.touch()

    assert worker.wait() == 0
    assert bench.scenario.states(run) == {"first": "success", "second": "queued", "third": "none"}


def test_a_worker_that_stops_while_a_report_waits_continues_with_nothing(bench: Any, tmp_path: Path) -> None:
    """The task is so long that its process has closed its connection, so the report waits for the others of its worker."""
    (tmp_path / "plan").write_text("report.before=stop@1")
    worker = bench.worker(
        **LONG,
        PACELINE_WORKER_IDLE_CONNECTION_SECONDS="0.1",
        **{fault_points.FAULTS: f"@{tmp_path / 'plan'}", fault_points.FOLDER: str(tmp_path)},
    )
    go = tmp_path / "go"
    bench.dag(row(first=wait_for(go)))
    bench.scenario.sql(SENT)
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, first="running")
    eventually(lambda: not bench.scenario.rows(CONNECTED))
    go.touch()
    eventually(lambda: (tmp_path / "struck").exists())

    worker.signal(signal.SIGTERM)
    eventually(lambda: "stopping: 0 tasks" in worker.output)
    os.kill(int((tmp_path / "struck").read_text().split()[1]), signal.SIGCONT)

    assert worker.wait() == 0
    assert bench.scenario.states(run)["first"] == "success"
    # Its worker may still have taken that message.
    assert bench.scenario.rows("select task_id from task_instance where id in (select * from sent) and task_no = 1") == [
        ("second",)
    ]


def test_nothing_is_stopped_for_a_task_with_which_a_process_died(shared_bench: Any) -> None:
    """The entry of the dead process is gone: a heartbeat after its death would stop, later kill, a process with its PID."""
    run = shared_bench.run(row(second="os._exit(3)").replace('"retries": 1', '"retries": 0'))
    beats = "select count(*) from process where kind = 'worker' and heartbeat_at > %s::timestamptz"
    (ended_at,) = shared_bench.scenario.rows("select max(ended_at) + interval '1 second' from task_instance")[0]

    eventually(lambda: shared_bench.scenario.rows(beats, ended_at) == [(1,)])

    assert shared_bench.scenario.states(run) == {"first": "success", "second": "failed", "third": "upstream_failed"}
    assert "was lost: the process exited with code 3" in shared_bench.output
    assert "stopping dispatch" not in shared_bench.output


def test_a_process_is_replaced_after_its_number_of_tasks_however_they_came(bench: Any) -> None:
    bench.worker(**LONG, PACELINE_WORKER_MAX_TASKS_PER_CHILD="3")

    bench.run(chain(7, "os.getpid()"))

    pids = [found[0] for found in bench.scenario.rows("select value #>> '{}' from xcom order by task_instance_id")]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]
    assert "lost" not in bench.output


@contextmanager
def events(bench: Any) -> Iterator[list[dict[str, Any]]]:
    """The events of tasks that workers send inside, once they do."""
    app, seen = celery_app(bench.settings), list[dict[str, Any]]()

    def enabled() -> bool:
        # Celery may use a connection of this process that a test has cut.
        with suppress(redis.ConnectionError, OperationalError):
            return bool(app.control.enable_events(reply=True, timeout=1))
        return False

    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        thread = threading.Thread(target=lambda: receiver.capture(limit=None, timeout=None, wakeup=False))
        thread.start()
        try:
            eventually(enabled)
            yield seen
        finally:
            receiver.should_stop = True
            thread.join(20)


def test_flower_receives_the_events_of_each_task_of_a_chain(bench: Any) -> None:
    bench.worker(**LONG)
    with events(bench) as seen:
        eventually(lambda: any(event["type"] == "worker-heartbeat" for event in seen))
        bench.run(chain(10))
        eventually(lambda: sum(event["type"] == "task-succeeded" for event in seen) == 10, message=lambda: str(seen))

    named = {event["uuid"]: event["name"] for event in seen if event["type"] == "task-received"}
    assert sorted(named.values()) == [f"d.t{number:03}" for number in range(10)]
    for uuid in named:
        steps = [event["type"] for event in seen if event.get("uuid") == uuid]
        assert steps == ["task-received", "task-started", "task-succeeded"]
    assert {event["args"] for event in seen if event["type"] == "task-received"} == {"r1"}
    dispatches = {found[0] for found in bench.scenario.rows("select dispatch_id::text from task_instance")}
    assert named.keys() == dispatches


def test_flower_receives_the_events_of_each_task_after_the_broker_was_unreachable(bench: Any) -> None:
    bench.worker(**LONG)
    bench.scenario.broker.client_kill_filter(_type="normal", skipme=True)
    bench.scenario.broker.client_kill_filter(_type="pubsub")
    with events(bench) as seen:
        eventually(lambda: any(event["type"] == "worker-heartbeat" for event in seen))
        bench.run(chain(10))
        eventually(lambda: sum(event["type"] == "task-succeeded" for event in seen) == 10, message=lambda: str(seen))


BUDGET_S = 0.1
LENGTH = 1000
#: Times at which another task arrives.
ARRIVALS = 5
#: The tasks of a chain have one weight. By default it falls along the chain, so messages of the chain that is behind may go first.
CHAIN_OF_TASKS = """
with DAG({dag_id!r}, schedule=None):
    chain(*[task(task_id=f"t{{n:04}}", pool={pool!r}, weight_rule="absolute")(lambda: None)() for n in range({length})])
"""
URGENT = """
with DAG("urgent", schedule=None):
    task(task_id="one", pool={pool!r}, priority_weight=9999)(lambda: None)()
"""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a task, in seconds since 1970. Without `by_message`, its process continued with it in place."""

    dag_id: str
    queued_at: float
    dispatched_at: float | None
    started_at: float
    by_message: bool


def starts(bench: Any) -> list[Start]:
    """All starts, in their order. There is one pool process."""
    rows = bench.scenario.rows("""
        select r.dag_id, extract(epoch from t.queued_at)::float8, extract(epoch from t.dispatched_at)::float8,
               extract(epoch from t.started_at)::float8, exists (select from sent s where s.task_instance_id = t.id)
          from task_instance t join dag_run r on r.id = t.dag_run_id order by t.started_at
    """)
    return [Start(*row) for row in rows]


def series(found: list[Start]) -> list[list[Start]]:
    """The tasks that the process ran from one message to the next."""
    apart: list[list[Start]] = []
    for one in found:
        if one.by_message:
            apart.append([])
        apart[-1].append(one)
    return apart


def keeps_to_its_budget(one: list[Start]) -> bool:
    """Whether the process continued only while its budget lasted: each task but the last started, and ended, within it."""
    return all(task.started_at < one[0].started_at + BUDGET_S for task in one[:-1])


@pytest.fixture
def process(bench: Any) -> Any:
    """The bench with one pool process, and a table of the task instances that were queued for a message."""
    bench.scenario.sql(SENT)
    bench.worker(PACELINE_WORKER_IN_PLACE_SECONDS=str(BUDGET_S))
    return bench


def arrive_in_the_middle(bench: Any, pool: str) -> list[float]:
    """Run a chain, and meanwhile, again and again, a DAG of higher rank. Returns the times from which on each one was waiting."""
    bench.dag(CHAIN_OF_TASKS.format(dag_id="row", pool=pool, length=LENGTH), "row.py")
    bench.dag(URGENT.format(pool=pool), "urgent.py")
    row = bench.scenario.trigger("row", run_id="r")
    bench.wait(row, t0010="success")
    waiting_since = []
    for number in range(ARRIVALS):
        urgent = bench.scenario.trigger("urgent", run_id=f"r{number}")
        bench.scenario.turn()
        waiting_since.append(bench.scenario.rows("select extract(epoch from clock_timestamp())::float8")[0][0])
        bench.wait(urgent)
    bench.wait(row)
    return waiting_since


def test_a_message_of_higher_rank_waits_for_one_series_at_most(process: Any) -> None:
    arrive_in_the_middle(process, "default_pool")

    found = starts(process)
    assert sum(not one.by_message for one in found) > LENGTH / 4
    assert all(keeps_to_its_budget(one) for one in series(found))
    urgent = [one for one in found if one.dag_id == "urgent"]
    assert urgent[0].started_at < max(one.started_at for one in found if one.dag_id == "row")
    for one in urgent:
        # It has no time of dispatch if it started before that was stored.
        sent_at = one.dispatched_at or one.started_at
        between = [other for other in found if sent_at < other.started_at < one.started_at and other.by_message]
        # Its message was in the queue already.
        assert all(other.queued_at < sent_at for other in between)
        assert len(between) <= 1


def test_a_task_of_higher_rank_gets_the_only_slot_of_a_pool_after_one_series(process: Any) -> None:
    process.scenario.pool("narrow", 1)

    waiting_since = arrive_in_the_middle(process, "narrow")

    found = starts(process)
    assert sum(not one.by_message for one in found) > LENGTH / 4
    assert all(keeps_to_its_budget(one) for one in series(found))
    urgent = [one for one in found if one.dag_id == "urgent"]
    assert urgent[0].started_at < max(one.started_at for one in found if one.dag_id == "row")
    for since, one in zip(waiting_since, urgent, strict=True):
        # That of a report which had begun before.
        assert sum(since < other.started_at < one.started_at and other.by_message for other in found) <= 1


def test_two_chains_take_turns_on_one_process(process: Any) -> None:
    runs = []
    for dag_id in ("left", "right"):
        process.dag(CHAIN_OF_TASKS.format(dag_id=dag_id, pool="default_pool", length=400), f"{dag_id}.py")
        runs.append(process.scenario.trigger(dag_id, run_id="r"))
    for run in runs:
        process.wait(run)

    found = starts(process)
    apart = series(found)
    assert all(keeps_to_its_budget(one) for one in apart)
    turns = [one[0].dag_id for one in apart]
    both = range(max(turns.index(dag_id) for dag_id in set(turns)), len(turns) - max(map(turns[::-1].index, set(turns))))
    assert len(both) > 2
    assert all(before != after for before, after in pairwise(turns[both.start : both.stop]))
