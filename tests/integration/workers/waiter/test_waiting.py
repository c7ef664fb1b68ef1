"""Branches, sensors and deferrals with real workers and a real waiter, and trigger classes that load slowly or never."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.deferred import running_waiter
from support.waiting import eventually

from scheduler.dagfiles.loaded_files import LoadedFiles
from scheduler.settings import Settings
from scheduler.store.worker.deferrals import Awaited
from workers.waiter.triggers import OtherRuns, Triggers

WAITER = """
import sys
from scheduler.settings import Settings
from workers.waiter import waiter
sys.exit(waiter.run(Settings.load(), name=sys.argv[1]))
"""
BRANCHES = """
from paceline.operators import *
from paceline.sensors import *

@dag(schedule=None)
def d():
    @task.branch
    def choose():
        return "a"
    a, b, c = (EmptyOperator(task_id=name) for name in "abc")
    join = EmptyOperator(task_id="join", trigger_rule="none_failed_min_one_success")
    stop = ShortCircuitOperator(task_id="stop", python_callable=lambda: False)
    never, rarely = EmptyOperator(task_id="never"), EmptyOperator(task_id="rarely", trigger_rule="all_done")
    choose() >> [a, b] >> join
    a >> stop >> never >> rarely
d()
"""


@pytest.fixture(scope="module")
def worker_options() -> dict[str, Any]:
    return {"concurrency": 2}


def test_branches_skip_tasks_that_they_did_not_choose(shared_bench: Any) -> None:
    run = shared_bench.run(BRANCHES)

    assert shared_bench.scenario.states(run) == {
        "choose": "success", "a": "success", "b": "skipped", "c": "success", "join": "success", "stop": "success",
        "never": "skipped", "rarely": "skipped",
    }  # fmt: skip
    decided = dict(shared_bench.scenario.rows("select task_id, decision from task_instance where decision is not null"))
    assert decided == {"choose": {"skip": ["b"]}, "stop": {"skip": ["never", "rarely"]}}
    assert shared_bench.scenario.rows(
        "select key, value from xcom join task_instance t on t.id = task_instance_id where task_id = 'choose' order by key"
    ) == [("return_value", "a"), ("skipmixin_key", {"followed": ["a"]})]


RESCHEDULED = """
from paceline.sensors import *

@dag(schedule=None)
def d():
    PythonSensor(task_id="s", python_callable=lambda: os.path.exists({path!r}), mode="reschedule", **{options!r})
    @task(retries=0)
    def other():
        return 1
    other()
d()
"""


def rescheduled(path: Path, **options: Any) -> str:
    return "import os\n" + RESCHEDULED.format(path=str(path), options=options)


def test_a_reschedule_sensor_holds_neither_slot_nor_worker_while_it_waits(bench: Any) -> None:
    bench.worker(concurrency=1)
    bench.scenario.sql("update pool set slots = 1")

    run = bench.run(rescheduled(bench.folder / "go", poke_interval=3600), s="up_for_reschedule", other="success")

    assert bench.scenario.rows("select resume from task_instance where task_id = 's'") == [({"pokes": 1},)]
    assert bench.last_line("s").endswith("not yet: up for reschedule in 3600 s")
    (bench.folder / "go").touch()
    bench.scenario.sql("update task_instance set due_at = clock_timestamp() where task_id = 's'")
    bench.wait(run)
    assert bench.scenario.rows("select state, try_number, resume from task_instance where task_id = 's'") == [("success", 1, None)]
    assert bench.log("s").count("try 1 of 1") == 2


def test_its_timeout_spans_its_dispatches_and_is_not_retried(shared_bench: Any) -> None:
    run = shared_bench.run(rescheduled(shared_bench.folder / "never", poke_interval=0.5, timeout=2, retries=3))

    assert shared_bench.scenario.states(run)["s"] == "failed"
    assert shared_bench.column("s", "try_number") == 1
    # However slow the machine is: one dispatch that was not yet there, and the one that found the time over.
    assert shared_bench.log("s").count("not yet") == shared_bench.log("s").count("try 1 of 4") - 1 >= 1
    assert "was not true within 2 s" in shared_bench.last_line("s")


def test_sensors_that_look_again_at_once_lose_no_report(bench: Any) -> None:
    """Section 3, row 8."""
    bench.worker(concurrency=4)
    sensors = """
from paceline.sensors import *

@dag(schedule=None, max_active_tasks=100)
def d():
    @task.sensor(mode="reschedule", poke_interval=0, retries=1)
    def s(ti=None):
        return (ti.resume or {}).get("pokes", 0) >= 5
    for _ in range(12):
        s()
d()
"""
    run = bench.run(sensors)

    assert set(bench.scenario.states(run).values()) == {"success"}
    assert bench.scenario.rows("select distinct try_number from task_instance") == [(1,)]
    assert "refused" not in bench.output


DEFERRED = """
import asyncio, os, time
from pathlib import Path
from datetime import timedelta
from paceline.triggers import BaseTrigger, TriggerEvent

class There(BaseTrigger):
    def __init__(self, path):
        self.path = path
    def serialize(self):
        return f"{type(self).__module__}.There", {"path": self.path}
    async def run(self):
        while not os.path.exists(self.path):
            await asyncio.sleep(0.05)
        yield TriggerEvent(Path(self.path).read_text())

class Broken(There):
    def serialize(self):
        return f"{type(self).__module__}.Broken", {"path": self.path}
    async def run(self):
        raise OSError("the other end is gone")
        yield

class Defers(BaseOperator):
    def __init__(self, *, path, kind=There, limit=None, **kwargs):
        super().__init__(**kwargs)
        self.path, self.kind, self.limit = path, kind, limit
    def execute(self, context):
        context["ti"].xcom_push("kept", 1)
        print("first half")
        self.defer(trigger=self.kind(self.path), method_name="go_on", kwargs={"more": 2}, timeout=self.limit)
    def go_on(self, context, event, more):
        print("second half")
        return [event, more, context["ti"].xcom_pull(key="kept")]

@dag(schedule=None)
def d():
    Defers(task_id="t", path=PATH, OPTIONS)
d()
"""


def deferred(path: Path, options: str = "") -> str:
    return DEFERRED.replace("PATH", repr(str(path))).replace(", OPTIONS", f", {options}" if options else "")


@pytest.fixture
def waiting(shared_bench: Any) -> Iterator[Any]:
    """The bench with a worker and a waiter."""
    with running_waiter(shared_bench.settings):
        yield shared_bench


def test_a_deferred_task_holds_no_worker_and_continues_in_the_same_try(waiting: Any) -> None:
    bench, path = waiting, waiting.folder / "go"

    run = bench.run(deferred(path), t="deferred")
    path.write_text("here")
    bench.wait(run)

    assert bench.scenario.rows("select state, try_number from task_instance") == [("success", 1)]
    assert bench.scenario.rows("select value from xcom where key = 'return_value'") == [(["here", 2, 1],)]
    log = bench.log("t")
    assert log.index("first half") < log.index("deferred to") < log.index("second half")


def test_a_broken_trigger_fails_the_try_with_its_words_in_the_log(waiting: Any) -> None:
    run = waiting.run(deferred(waiting.folder / "go", "kind=Broken, retries=1, retry_delay=timedelta(0)"))

    assert waiting.scenario.states(run) == {"t": "failed"}
    assert waiting.column("t", "try_number") == 2, "retried as any failure"
    assert "OSError: the other end is gone" in waiting.log("t", 2)


def test_a_trigger_that_does_not_fire_in_time_fails_the_try(waiting: Any) -> None:
    run = waiting.run(deferred(waiting.folder / "go", "limit=0.1"))

    assert waiting.scenario.states(run) == {"t": "failed"}
    assert "did not fire within the timeout" in waiting.last_line("t")


def test_another_waiter_takes_over_from_a_killed_waiter(bench: Any) -> None:
    bench.worker(concurrency=1)
    environment = {
        **os.environ,
        "PACELINE_HOME": str(bench.settings.home),
        "PACELINE_DAGS_FOLDER": str(bench.settings.dags_folder),
        "PACELINE_DATABASE_URL": bench.settings.database_url,
        "PACELINE_BROKER_URL": bench.settings.broker_url,
    }
    process = subprocess.Popen([sys.executable, "-P", "-c", WAITER, "first"], env=environment, cwd=bench.folder)
    try:
        path = bench.folder / "go"
        run = bench.run(deferred(path), t="deferred")
        holder = "select p.name from deferral d join process p on p.id = d.waiter where p.stopped_at is null"
        eventually(lambda: bench.scenario.rows(holder) == [("first",)], timeout=60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()

    with running_waiter(bench.settings, "second"):
        bench.scenario.sql("update process set heartbeat_at = now() - interval '1 hour' where name = 'first'")
        eventually(lambda: bench.scenario.turn() or bench.scenario.rows(holder) == [("second",)], timeout=60)
        path.write_text("here")
        bench.wait(run)

    assert bench.scenario.rows("select state, try_number from task_instance") == [("success", 1)]


def test_a_run_of_another_dag_is_triggered_and_awaited(waiting: Any) -> None:
    waiting.dag(
        """
        @dag(schedule=None)
        def other():
            @task
            def t(conf=None):
                return conf["a"]
            t()
        other()
        """,
        "other.py",
    )
    run = waiting.run(
        """
        from paceline.sensors import *
        @dag(schedule=None)
        def d():
            trigger = TriggerDagRunOperator(
                task_id="trigger", trigger_dag_id="other", conf={"a": 5}, logical_date="{{ logical_date.isoformat() }}",
                wait_for_completion=True, deferrable=True)
            sensor = ExternalTaskSensor(task_id="sensor", external_dag_id="other", external_task_id="t", check_existence=True)
            again = dict(trigger_dag_id="other", logical_date="{{ logical_date.isoformat() }}")
            exists = TriggerDagRunOperator(task_id="exists", skip_when_already_exists=True, **again)
            clears = TriggerDagRunOperator(
                task_id="clears", trigger_rule="all_done", reset_dag_run=True, wait_for_completion=True, poke_interval=0.1, **again)
            trigger >> sensor >> exists >> clears
        d()
        """
    )

    assert waiting.scenario.states(run) == {"trigger": "success", "sensor": "success", "exists": "skipped", "clears": "success"}
    assert waiting.scenario.rows("select state, conf, triggered_by from dag_run where dag_id = 'other'") == [
        ("success", {"a": 5}, "d.trigger")
    ]
    assert waiting.scenario.rows("select try_number from task_instance where task_id = 't'") == [(2,)], "cleared, and run again"


def test_a_retry_triggers_another_run_after_one_that_failed(waiting: Any) -> None:
    waiting.dag(
        f"""
        from pathlib import Path
        @dag(schedule=None)
        def other():
            @task
            def t(conf=None):
                mark = Path({str(waiting.folder)!r}, conf["by"])
                if not mark.exists():
                    mark.touch()
                    raise ValueError("first time")
            t()
        other()
        """,
        "other.py",
    )
    run = waiting.run(
        """
        @dag(schedule=None)
        def d():
            again = dict(trigger_dag_id="other", wait_for_completion=True, deferrable=True, retries=2, retry_delay=0)
            TriggerDagRunOperator(task_id="free", conf={"by": "free"}, **again)
            TriggerDagRunOperator(task_id="fixed", conf={"by": "fixed"}, trigger_run_id="fixed", **again)
        d()
        """
    )

    assert waiting.scenario.states(run) == {"free": "success", "fixed": "success"}
    made = waiting.scenario.rows("select conf->>'by', state from dag_run where dag_id = 'other' order by 1, 2")
    assert made == [("fixed", "success"), ("free", "failed"), ("free", "success")]


@pytest.mark.parametrize("asked", ["none", "success", "skipped"])
def test_a_running_task_with_a_stop_request_ends_once_as_requested(shared_bench: Any, asked: str) -> None:
    run = shared_bench.run(
        """
        import time
        @dag(schedule=None)
        def d():
            @task(retries=2)
            def t(ti):
                with open(FILE, "a") as file:
                    file.write("started\\n")
                if open(FILE).read().count("started") == 1:
                    time.sleep(120)
            t()
        d()
        """.replace("FILE", repr(str(shared_bench.folder / "starts"))),
        t="running",
    )
    eventually(lambda: (shared_bench.folder / "starts").exists())

    shared_bench.scenario.sql("update task_instance set state = 'shutdown', requested_state = %s where state = 'running'", asked)
    shared_bench.wait(run)

    assert shared_bench.scenario.states(run) == {"t": "success" if asked == "none" else asked}
    assert (shared_bench.folder / "starts").read_text().count("started") == (2 if asked == "none" else 1)


def test_mapped_tasks_wait_and_branch_each_for_itself(waiting: Any) -> None:
    run = waiting.run(
        """
        from datetime import timedelta
        from paceline.sensors import *

        @dag(schedule=None)
        def d():
            @task.sensor(mode="reschedule", poke_interval=0.1)
            def look(n, ti=None):
                return PokeReturnValue((ti.resume or {}).get("pokes", 0) >= n, n)
            DateTimeSensor.partial(task_id="moment", deferrable=True).expand(
                target_time=["{{ (ti.start_date + macros.timedelta(seconds=0.2)).isoformat() }}", "{{ ts }}"])

            @task_group
            def each(n):
                @task.branch
                def choose(n):
                    return "each.odd" if n % 2 else "each.even"
                choose(n) >> [EmptyOperator(task_id="odd"), EmptyOperator(task_id="even")]
            each.expand(n=look.expand(n=[0, 1, 2]))
        d()
        """
    )

    rows = waiting.scenario.rows("select task_id, map_index, state from task_instance where dag_run_id = %s order by 1, 2", run)
    skipped = [("each.even", 1, "skipped"), ("each.odd", 0, "skipped"), ("each.odd", 2, "skipped")]
    assert [row for row in rows if row[2] != "success"] == skipped
    assert len(rows) == 3 + 2 + 9


FILE = """
import threading
threading.Event().wait({seconds})
from paceline.triggers import BaseTrigger, TriggerEvent
class Fires(BaseTrigger):
    async def run(self):
        yield TriggerEvent("fired")
"""
LIMIT_S = 2.0


def awaited(settings: Settings, seconds: Mapping[str, float], *, triggers_of_each: int = 1) -> list[Awaited]:
    """Triggers of files that take this long to load."""
    found = []
    for name, value in seconds.items():
        path = settings.dags_folder / f"{name}.py"
        path.write_text(FILE.format(seconds=0))
        module = LoadedFiles(settings.dags_folder).module(path.name).__name__
        path.write_text(FILE.format(seconds=value))
        for number in range(triggers_of_each):
            found.append(
                Awaited(
                    ti_id=number, dispatch_id=f"{name}-{number}", classpath=f"{module}.Fires", kwargs={}, file=path.name,
                    dag_id=name, run_id="r", task_id="t",
                )
            )  # fmt: skip
    return found


def errors(settings: Settings, rows: list[Awaited]) -> dict[str, str]:
    """The errors of these triggers by dispatch, when all are awaited at once."""
    limited = settings.scheduler.model_copy(update={"dag_file_processor_timeout": LIMIT_S})

    async def run() -> dict[str, str]:
        async def ask(_: object) -> list[object]:
            return []

        triggers = Triggers(settings.model_copy(update={"scheduler": limited}), OtherRuns(ask, datetime.now(UTC)))  # type: ignore[arg-type]
        fired = await asyncio.gather(*(triggers.run(row) for row in rows))
        return {one.dispatch_id: str(one.outcome["error"]) for one in fired if "error" in one.outcome}

    return asyncio.run(run())


def test_the_time_limit_of_a_file_does_not_include_the_files_before_it(settings: Settings) -> None:
    rows = awaited(settings, dict.fromkeys(("one", "two", "three", "four"), LIMIT_S * 0.4))
    assert errors(settings, rows) == {}


def test_a_file_that_hangs_fails_its_own_triggers_after_one_time_limit(settings: Settings) -> None:
    rows = awaited(settings, {"hangs": 3 * LIMIT_S}, triggers_of_each=20) + awaited(settings, {"quick": 0})
    found = errors(settings, rows)
    # If each took a time limit of its own, the file would have been loaded before the last of them.
    assert sorted(found) == sorted(f"hangs-{number}" for number in range(20))
    assert all(f"could not be loaded from hangs.py within {LIMIT_S:g} s" in error for error in found.values())
