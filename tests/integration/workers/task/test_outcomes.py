"""How a task ends, with a real worker: states, tries, reasons, the last line of the log, `on_kill`, and rendered templates."""

import json
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher
from scheduler.store.actions import clear, mark
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks

from ..conftest import wait_for

ONE_TASK = """
import os, signal, sys, time
from datetime import timedelta
from paceline.exceptions import *
@dag(schedule=None)
def d():
    @task({arguments})
    def t(ti):
        {body}
    t()
d()
"""


def one_task(body: str, arguments: str = "") -> str:
    return ONE_TASK.format(body=body, arguments=arguments)


def test_a_task_that_returns_a_value_succeeds_and_passes_it_on(shared_bench: Any) -> None:
    shared_bench.run("""
        @dag(schedule=None)
        def d():
            @task
            def one():
                return {"a": [1, 2]}
            @task
            def two(value):
                return value["a"][1] + 1
            two(one())
        d()
    """)

    assert shared_bench.scenario.states() == {"one": "success", "two": "success"}
    values = shared_bench.scenario.rows("select t.task_id, x.value from xcom x join task_instance t on t.id = x.task_instance_id")
    assert dict(values) == {"one": {"a": [1, 2]}, "two": 3}
    assert "success after" in shared_bench.last_line("two")


def test_multiple_outputs_are_stored_one_by_one(shared_bench: Any) -> None:
    shared_bench.run(one_task('return {"a": 1, "b": [2]}', "multiple_outputs=True"))

    values = dict(shared_bench.scenario.rows("select key, value from xcom"))
    assert values == {"a": 1, "b": [2], "return_value": {"a": 1, "b": [2]}}


def test_a_failed_try_is_followed_by_another_and_the_xcoms_of_the_first_are_gone(shared_bench: Any) -> None:
    shared_bench.run(
        one_task(
            'ti.xcom_push("k", ti.try_number) if ti.try_number == 1 else None; '
            'exec("raise ValueError(\'boom\')") if ti.try_number == 1 else None; return ti.xcom_pull(key="k", default="gone")',
            "retries=1, retry_delay=0.1",
        )
    )

    assert shared_bench.scenario.states() == {"t": "success"}
    assert shared_bench.column("t", "try_number") == 2
    assert shared_bench.scenario.rows("select key, value from xcom") == [("return_value", "gone")]
    assert shared_bench.last_line("t", 1).endswith("up for retry in 0.1 s: ValueError: boom")
    assert "success" in shared_bench.last_line("t", 2)


def test_a_task_fails_when_its_retries_are_used_up(shared_bench: Any) -> None:
    shared_bench.run(one_task("raise ValueError('boom')", "retries=1, retry_delay=0.1"))

    assert shared_bench.scenario.states() == {"t": "failed"}
    assert (shared_bench.column("t", "try_number"), shared_bench.column("t", "reason")) == (2, "ValueError: boom")
    assert shared_bench.last_line("t", 2).endswith("failed: ValueError: boom")


@pytest.mark.parametrize(
    ("body", "state", "reason"),
    [
        ("raise SkipTask('no data')", "skipped", "no data"),
        ("raise FailTask('no use')", "failed", "no use"),
        ("return {'rows': [object()]}", "failed", 'return value["rows"][0] is of type object'),
        ("return 'x' * 2_000_000", "failed", "2,000,002 bytes"),
    ],
)
def test_some_endings_are_final_even_if_retries_remain(shared_bench: Any, body: str, state: str, reason: str) -> None:
    shared_bench.run(one_task(body, "retries=3"))

    assert shared_bench.scenario.states() == {"t": state}
    assert shared_bench.column("t", "try_number") == 1
    assert reason in str(shared_bench.column("t", "reason"))
    assert reason in shared_bench.last_line("t")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit(4)", "sys.exit(4)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("os._exit(3)", "the process exited with code 3"),
        ("os._exit(0)", "the process exited with code 0"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL (possibly out of memory)"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", "its process received SIGTERM"),
    ],
)
def test_damage_by_user_code_to_its_process_fails_the_task_and_not_the_worker(shared_bench: Any, body: str, reason: str) -> None:
    worker = shared_bench.workers[-1]

    shared_bench.run(one_task(f"ti.try_number == 1 and exec({body!r}, globals())", "retries=1, retry_delay=0.1"))

    assert shared_bench.scenario.states() == {"t": "success"}
    assert shared_bench.column("t", "try_number") == 2
    assert worker.process.poll() is None
    assert shared_bench.scenario.rows("select state, reason from task_try")[0][0] == "failed"
    assert reason in shared_bench.scenario.rows("select reason from task_try")[0][0]
    assert reason in shared_bench.last_line("t", 1)


def test_a_task_that_runs_too_long_is_interrupted_and_tried_again(shared_bench: Any) -> None:
    shared_bench.run(
        one_task("ti.try_number == 1 and time.sleep(60)", "retries=1, retry_delay=0.1, execution_timeout=timedelta(seconds=0.3)")
    )

    assert shared_bench.scenario.states() == {"t": "success"}
    assert "TaskTimeout: It ran longer than its execution_timeout of 0.3 s." in shared_bench.last_line("t", 1)


def test_a_task_that_ignores_its_timeout_is_killed(shared_bench: Any) -> None:
    shared_bench.run(
        one_task(
            "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(60)",
            "execution_timeout=timedelta(seconds=0.3)",
        )
    )

    assert shared_bench.column("t", "state") == "failed"
    assert "ran longer than its execution_timeout and did not react" in str(shared_bench.column("t", "reason"))
    assert "did not react" in shared_bench.last_line("t")


def test_an_undefined_name_in_a_template_fails_that_task_with_the_name(shared_bench: Any) -> None:
    shared_bench.run("""
        with DAG("d", schedule=None):
            BashOperator(task_id="t", bash_command="echo {{ nonsense }}")
            BashOperator(task_id="other", bash_command="echo {{ run_id }} >&2; pwd")
    """)

    assert shared_bench.scenario.states() == {"t": "failed", "other": "success"}
    assert "nonsense" in shared_bench.last_line("t")
    assert "r1\n" in shared_bench.log("other")


def test_an_empty_task_succeeds_without_its_dag_file_and_without_a_log(shared_bench: Any) -> None:
    shared_bench.dag("""
        with DAG("d", schedule=None):
            EmptyOperator(task_id="t")
    """)
    (shared_bench.settings.dags_folder / "example.py").unlink()

    shared_bench.wait(shared_bench.scenario.trigger("d", run_id="r1"))

    assert shared_bench.scenario.states() == {"t": "success"}
    assert not shared_bench.log_path("t").exists()


def test_a_dag_file_that_no_longer_loads_fails_its_tasks_and_nothing_else(shared_bench: Any) -> None:
    shared_bench.dag(one_task("return 1"))
    (shared_bench.settings.dags_folder / "example.py").write_text("import sys; sys.exit(1)")

    shared_bench.wait(shared_bench.scenario.trigger("d", run_id="r1"))

    assert shared_bench.scenario.states() == {"t": "failed"}
    assert "example.py cannot be loaded: SystemExit" in shared_bench.last_line("t")


def test_a_message_delivered_twice_runs_once(bench: Any) -> None:
    bench.dag(one_task(f"open({str(bench.folder / 'ran')!r}, 'a').write('x')"))
    run = bench.scenario.trigger("d", run_id="r1")
    for _ in range(3):
        bench.scenario.turn()
    dispatch = bench.scenario.rows("select id, dispatch_id::text from task_instance where state = 'queued'")
    again = Message(ti_id=dispatch[0][0], dispatch_id=dispatch[0][1], queue="default", dag_id="d", run_id="r1", task_id="t")
    publisher = Publisher(bench.settings)
    publisher.publish([again, again])
    publisher.close()

    worker = bench.worker()
    bench.wait(run)

    eventually(lambda: worker.output.count("dropped dispatch") == 2)
    assert (bench.folder / "ran").read_text() == "x"


def test_a_report_that_comes_too_late_is_refused_and_logged(bench: Any) -> None:
    bench.worker(PACELINE_WORKER_HEARTBEAT_SEC="30", PACELINE_WORKER_HEARTBEAT_TIMEOUT="60")
    bench.dag(one_task(wait_for(bench.folder / "go")))
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, t="running")
    bench.scenario.sql("update task_instance set state = 'failed', ended_at = now(), reason = 'by hand', dispatch_id = null")

    (bench.folder / "go").touch()

    # The state is `running` a moment before the worker makes the log.
    eventually(lambda: bench.log_path("t").exists() and "the report was refused" in bench.log("t"))
    assert bench.column("t", "reason") == "by hand"


def test_a_task_that_lost_its_try_is_stopped_and_its_child_continues(shared_bench: Any) -> None:
    shared_bench.dag(one_task(f"time.sleep(60 if not os.path.exists({str(shared_bench.folder / 'go')!r}) else 0)"))
    run = shared_bench.scenario.trigger("d", run_id="r1")
    shared_bench.wait(run, t="running")
    (shared_bench.folder / "go").touch()

    shared_bench.scenario.sql(
        "update task_instance set state = null, dispatch_id = null, worker = null, started_at = null, queued_at = null,"
        " queued_by = null, dispatched_at = null, scheduled_at = null"
    )
    shared_bench.wait(run)

    assert shared_bench.scenario.states() == {"t": "success"}
    assert "this try is no longer the current one" in shared_bench.log("t", 1)


def test_templates_and_functions_have_the_last_successful_run(shared_bench: Any) -> None:
    shared_bench.dag("""
        def name_it(prev_start_date_success):
            print("started", prev_start_date_success.year if prev_start_date_success else "never")

        with DAG("d", schedule=None):
            BashOperator(
                task_id="a",
                bash_command="echo {{ prev_data_interval_start_success | ds if prev_data_interval_start_success else 'none' }}",
            )
            PythonOperator(task_id="b", python_callable=name_it)
    """)
    for run_id, day in (("r1", 1), ("r2", 2)):
        shared_bench.wait(shared_bench.scenario.trigger("d", run_id=run_id, logical_date=datetime(2026, 1, day, tzinfo=UTC)))

    assert "\nnone\n" in shared_bench.log("a") and "started never" in shared_bench.log("b")
    assert "\n2026-01-01\n" in shared_bench.log("a", run_id="r2")
    assert f"started {datetime.now(UTC).year}" in shared_bench.log("b", run_id="r2")


WORKS = """
import time
from datetime import timedelta

class Works(BaseOperator):
    def execute(self, context):
        if context["ti"].try_number == 1:
            print("started", flush=True)
            time.sleep(120)

    def on_kill(self):
        with open({killed!r}, "a") as file:
            file.write(self.task_id + "\\n")

with DAG("d", schedule=None):
    Works(task_id="t"{options})
"""


def started(bench: Any, options: str = "") -> tuple[int, Path]:
    """A run whose task has begun, and the file to which its `on_kill` writes."""
    killed = bench.folder / "killed"
    bench.dag(WORKS.format(killed=str(killed), options=options))
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, t="running")
    eventually(lambda: bench.log_path("t").exists() and "started" in bench.log("t"))
    return run, killed


def test_a_timeout_calls_it(shared_bench: Any) -> None:
    run, killed = started(shared_bench, ", execution_timeout=timedelta(seconds=2)")

    shared_bench.wait(run)

    assert killed.read_text() == "t\n"
    assert shared_bench.column("t", "reason") == "TaskTimeout: It ran longer than its execution_timeout of 2 s."


def test_clearing_its_task_calls_it(shared_bench: Any) -> None:
    run, killed = started(shared_bench)

    transact(shared_bench.scenario.engine, clear.clear, Runs(dag_id="d"), Tasks(task_ids=("t",)), core=shared_bench.settings.core)
    shared_bench.wait(run)

    assert killed.read_text() == "t\n"
    assert shared_bench.scenario.states(run) == {"t": "success"}
    assert shared_bench.column("t", "try_number") == 2


@pytest.mark.parametrize("state", [TaskState.SUCCESS, TaskState.FAILED])
def test_marking_its_task_calls_it(shared_bench: Any, state: TaskState) -> None:
    run, killed = started(shared_bench)

    transact(shared_bench.scenario.engine, mark.mark, Runs(dag_id="d"), Tasks(task_ids=("t",)), state)
    shared_bench.wait(run)

    eventually(killed.exists)
    assert killed.read_text() == "t\n"
    assert shared_bench.scenario.states(run) == {"t": state}


def test_a_worker_that_stops_calls_it_after_its_grace_period(bench: Any) -> None:
    worker = bench.worker(PACELINE_WORKER_GRACE_SEC="0.3")
    run, killed = started(bench, ", retries=1, retry_delay=0.1")

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert killed.read_text() == "t\n"
    assert bench.scenario.states(run) == {"t": "up_for_retry"}
    assert bench.column("t", "reason") == "worker was stopped"


DAG = """
from paceline.operators import BashOperator
@dag(schedule=None)
def d():
    @task(retries=0)
    def plain(n):
        return n
    @task(templates_dict={"when": "{{ ds }}", "api_token": "{{ run_id }}"})
    def templated(templates_dict=None):
        raise ValueError(templates_dict["when"])
    plain(1)
    templated()
    BashOperator(task_id="shell", bash_command="echo {{ run_id }} {{ var.value.secret_word }}")
d()
"""


def test_rendered_templates(bench: Any) -> None:
    bench.worker(PACELINE_VAR_SECRET_WORD="nobody-sees-this")
    bench.dag(DAG)
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run)

    def kept(task_id: str) -> Any:
        path = bench.log_path(task_id).with_name("try-1.rendered.json")
        return json.loads(path.read_text()) if path.exists() else None

    assert kept("plain") is None
    assert kept("shell") == {"bash_command": "echo r1 ***"}
    found = kept("templated")
    assert found["templates_dict['api_token']"] == "***"
    assert found["templates_dict['when']"]
