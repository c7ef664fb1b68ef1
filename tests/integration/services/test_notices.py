"""Callbacks: recorded with the change that caused them, run once in a child, and again only after a crash in their middle."""

import json
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scenario import Scenario
from support.waiting import eventually

from scheduler.dagfiles import load
from scheduler.following.follow import Ending
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.services.notify import Notify
from scheduler.settings import Settings
from scheduler.states import TaskState
from scheduler.store.upkeep import notices

HEAD = """
import json, os, pathlib, signal, time
from scheduler import DAG
from scheduler.operators import EmptyOperator

HERE = pathlib.Path(__file__).parent.parent

def note(what, context):
    ti = context["ti"]
    told = {"what": what, "try": ti and ti.try_number, "state": ti and ti.state, "reason": context["reason"],
            "rerun": context["is_rerun"], "attempt": context["attempt"], "run_id": context["run_id"],
            "dag": context["dag"].dag_id, "dates": [context.get("ds"), str(context.get("logical_date"))]}
    with open(HERE / "told", "a") as file:
        file.write(json.dumps(told) + "\\n")

def tell(what):
    return lambda context: note(what, context)

def wait(name):
    while not (HERE / name).exists():
        time.sleep(0.01)
"""

#: A scheduler's notify in a process of its own, with the settings in its argument.
KILLED = """
import sys, time
from scheduler.services.notify import Notify
from scheduler.settings import Settings
from scheduler.store.db import database
settings = Settings.model_validate_json(sys.argv[1])
notify = Notify(database.create(settings), settings, lambda: "killed")
while True:
    notify.run_once()
    time.sleep(0.05)
"""


def write(scenario: Scenario, source: str, dag_id: str = "d", name: str | None = None) -> SerializedDag:
    """Put a DAG file into the folder and store its DAG."""
    name = name or f"{dag_id}.py"
    folder = scenario.settings.dags_folder
    (folder / name).write_text(HEAD + textwrap.dedent(source))
    dag = load.load(folder, name)[dag_id]
    return scenario.add(from_dag(dag, file=name, core=scenario.settings.core, scheduler=scenario.settings.scheduler))


def told(scenario: Scenario) -> list[dict[str, Any]]:
    path = Path(scenario.settings.dags_folder).parent / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def signal(scenario: Scenario, name: str) -> None:
    (scenario.settings.dags_folder.parent / name).touch()


def notify(scenario: Scenario) -> None:
    """Turn every scheduler's notify until nothing is open."""

    def turn() -> bool:
        for scheduler in scenario.schedulers:
            scheduler.service(Notify).take()
        return not scenario.rows("select 1 from notice where ended_at is null")

    eventually(turn, timeout=60, message=lambda: str(scenario.rows("select kind, attempts, error from notice")))


def errors(scenario: Scenario) -> list[str | None]:
    return [row[0] for row in scenario.rows("select error from notice order by id")]


def test_each_event_of_a_task_and_its_run_calls_its_callback_once(scenario: Scenario) -> None:
    write(
        scenario,
        """
        with DAG("d", schedule=None, on_success_callback=tell("dag_success"), on_failure_callback=tell("dag_failure")):
            EmptyOperator(task_id="a", on_execute_callback=tell("on_execute"), on_success_callback=[tell("first"), tell("second")],
                          on_failure_callback=tell("on_failure"), on_retry_callback=tell("on_retry"), retries=1, retry_delay=0)
        """,
    )
    scenario.trigger("d", run_id="r")
    endings = iter([TaskState.UP_FOR_RETRY, TaskState.SUCCESS])
    scenario.run_to_end(outcome=lambda _: next(endings))

    notify(scenario)

    assert [(one["what"], one["try"]) for one in told(scenario)] == [
        ("on_execute", 1), ("on_retry", 1), ("on_execute", 2), ("first", 2), ("second", 2), ("dag_success", 2),
    ]  # fmt: skip
    assert {(one["rerun"], one["attempt"], one["run_id"], one["dag"]) for one in told(scenario)} == {(False, 1, "r", "d")}
    assert errors(scenario) == [None] * 5


def test_a_failure_tells_why(scenario: Scenario) -> None:
    write(
        scenario,
        """
        with DAG("d", schedule=None, on_failure_callback=tell("dag_failure")):
            EmptyOperator(task_id="a", on_failure_callback=tell("on_failure"), on_success_callback=tell("on_success"))
        """,
    )
    scenario.trigger("d")
    eventually(lambda: (scenario.turn(), scenario.rows("select 1 from task_instance where state = 'queued'"))[1])
    claim = scenario.claim(scenario.messages()[0])
    assert claim is not None
    scenario.follower.report(claim, Ending(TaskState.FAILED, reason="a wall"))
    scenario.run_to_end()

    notify(scenario)

    assert [(one["what"], one["state"], one["reason"]) for one in told(scenario)] == [
        ("on_failure", "failed", "a wall"), ("dag_failure", "failed", "task_failure"),
    ]  # fmt: skip


def test_a_callback_that_raises_is_ended_with_its_error_and_stops_no_other(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        scenario,
        """
        def bad(context):
            print("about to fail")
            raise ValueError("no such channel")

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=[tell("first"), bad, tell("third")])
        """,
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()

    notify(scenario)

    assert [one["what"] for one in told(scenario)] == ["first", "third"]
    assert errors(scenario) == ["ValueError: no such channel"]
    log = (scenario.settings.logs_folder / "d" / "r" / "a" / "callbacks.log").read_text()
    assert "about to fail" in log and "Traceback" in log
    assert "The on_success callback of d.a (run r, try 1) failed: ValueError: no such channel." in caplog.text
    assert [row["error"] for row in notices.notices(scenario.engine, dag_id="d", failed=True)] == ["ValueError: no such channel"]


def test_what_a_callback_masks_is_masked_in_its_log_and_in_its_error(scenario: Scenario) -> None:
    write(
        scenario,
        """
        from scheduler import mask_secret

        def leaks(context):
            mask_secret("hunter2hunter2")
            print("printed hunter2hunter2", flush=True)
            os.system("echo shouted hunter2hunter2")
            raise ValueError("not hunter2hunter2")

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=[leaks, lambda context: print("afterwards")])
        """,
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()

    notify(scenario)

    assert errors(scenario) == ["ValueError: not ***"]
    log = (scenario.settings.logs_folder / "d" / "r" / "a" / "callbacks.log").read_text()
    assert [line for line in log.splitlines() if not line.startswith(("---", "Traceback", " "))] == [
        "printed ***", "shouted ***", "ValueError: not ***", "afterwards",
    ]  # fmt: skip


def test_a_callback_whose_process_dies_is_called_again_and_told_so(scenario: Scenario) -> None:
    write(
        scenario,
        """
        def dies_once(context):
            note("dies", context)
            if not context["is_rerun"]:
                os.kill(os.getpid(), signal.SIGKILL)

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=[tell("before"), dies_once, tell("after")])
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()

    notify(scenario)

    assert [(one["what"], one["rerun"], one["attempt"]) for one in told(scenario)] == [
        ("before", False, 1), ("dies", False, 1), ("dies", True, 2), ("after", False, 2),
    ]  # fmt: skip
    assert errors(scenario) == [None]


def test_a_callback_that_always_ends_its_process_is_given_up(scenario: Scenario) -> None:
    write(
        scenario,
        """
        def dies(context):
            note("dies", context)
            os._exit(7)

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=[dies, tell("after")])
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()

    notify(scenario)

    assert [(one["what"], one["attempt"]) for one in told(scenario)] == [("dies", 1), ("dies", 2), ("dies", 3), ("after", 3)]
    assert errors(scenario) == ["its process ended (exit code 7)"]


def test_a_callback_that_takes_too_long_is_ended_and_not_called_again(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"callback_execution_timeout": 0.5})
    write(
        scenario,
        """
        def hangs(context):
            note("hangs", context)
            time.sleep(600)

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=[hangs, tell("after")])
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()

    notify(scenario)

    assert [one["what"] for one in told(scenario)] == ["hangs", "after"]
    assert errors(scenario) == ["it took more than 0.5 s and was ended"]


def test_the_loop_goes_on_while_a_callback_hangs(scenario: Scenario) -> None:
    write(
        scenario,
        """
        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=lambda context: wait("go"))
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()
    scenario.turn()
    beat = scenario.rows("select max(heartbeat_at) from process where kind = 'scheduler'")

    scenario.turn()

    assert scenario.schedulers[0].service(Notify).busy
    assert scenario.rows("select max(heartbeat_at) from process where kind = 'scheduler'") > beat
    signal(scenario, "go")
    notify(scenario)


def test_two_schedulers_tell_each_notice_once(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2, scheduler={"max_callbacks_per_loop": 3})
    source = """
        with DAG({dag!r}, schedule=None, max_active_runs=50):
            EmptyOperator(task_id="a", on_success_callback=tell({dag!r}))
        """
    for dag_id in ("d", "e"):
        write(scenario, source.format(dag=dag_id), dag_id)
        for number in range(10):
            scenario.trigger(dag_id, run_id=f"r{number}")
    scenario.run_to_end()
    stop = threading.Event()

    def keep_claiming() -> None:
        while not stop.is_set():
            scenario.schedulers[1].service(Notify).take()

    other = threading.Thread(target=keep_claiming)
    other.start()
    try:
        notify(scenario)
    finally:
        stop.set()
        other.join()

    seen = sorted((one["what"], one["run_id"]) for one in told(scenario))
    assert seen == sorted((dag_id, f"r{number}") for dag_id in ("d", "e") for number in range(10))
    assert scenario.rows("select distinct attempts, error from notice") == [(1, None)]


def test_a_slow_file_holds_up_no_other_file(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"callback_processes": 2})
    source = """
        with DAG({dag!r}, schedule=None, max_active_runs=50):
            EmptyOperator(task_id="a", on_success_callback=lambda context: {body})
        """
    write(scenario, source.format(dag="slow", body="wait('go')"), "slow")
    write(scenario, source.format(dag="quick", body="note('quick', context)"), "quick")
    for number in range(30):
        scenario.trigger("slow", run_id=f"r{number}")
    scenario.trigger("quick")
    scenario.run_to_end()

    def quick_told() -> bool:
        scenario.schedulers[0].service(Notify).take()
        return bool(told(scenario))

    eventually(quick_told)
    signal(scenario, "go")
    notify(scenario)


def test_a_file_with_many_slow_callbacks_makes_way_for_others(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"callback_processes": 1})
    source = """
        with DAG({dag!r}, schedule=None, max_active_runs=50):
            EmptyOperator(task_id="a", on_success_callback=lambda context: (time.sleep({seconds}), note({dag!r}, context)))
        """
    write(scenario, source.format(dag="slow", seconds=0.5), "slow")
    write(scenario, source.format(dag="quick", seconds=0), "quick")
    for number in range(15):
        scenario.trigger("slow", run_id=f"r{number}")
    scenario.trigger("quick")
    scenario.run_to_end()

    def quick_told() -> bool:
        scenario.schedulers[0].service(Notify).take()
        return "quick" in [one["what"] for one in told(scenario)]

    eventually(quick_told)

    assert 0 < len(told(scenario)) < 16
    assert scenario.rows("select max(attempts) from notice") == [(1,)]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("gone", "The DAG file .*d.py cannot be loaded: FileNotFoundError"),
        ("raise RuntimeError('half saved')", "cannot be loaded: RuntimeError: half saved"),
        ("os._exit(3)", r"cannot be loaded: reading it, its process ended \(exit code 3\)"),
        ("DAG('other')", "DAG d is no longer in its file"),
        ("with DAG('d'): EmptyOperator(task_id='a')", "has no on_success callback any more"),
    ],
)
def test_a_file_that_has_changed_is_said_to_have(scenario: Scenario, change: str, complaint: str) -> None:
    write(
        scenario,
        """
        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=tell("on_success"))
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()
    path = scenario.settings.dags_folder / "d.py"
    path.write_text(HEAD + change)
    if change == "gone":
        path.unlink()

    notify(scenario)

    assert told(scenario) == []
    assert re.search(complaint, errors(scenario)[0] or "")


def test_a_callback_sees_no_password_and_may_not_pull(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("PACELINE_SMTP_PASSWORD", "geheim")
    monkeypatch.setenv("PACELINE_CORE_FERNET_KEY", "geheim")
    write(
        scenario,
        """
        def look(context):
            seen = {"PACELINE_DATABASE_URL", "PACELINE_SMTP_PASSWORD", "PACELINE_CORE_FERNET_KEY"} & set(os.environ)
            assert not seen, seen
            try:
                context["ti"].xcom_pull(task_ids="a")
            except Exception as error:
                context["reason"] = str(error)
            note("look", context)

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=look)
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()

    notify(scenario)

    assert errors(scenario) == [None]
    assert "works only while a task runs" in told(scenario)[0]["reason"]


def test_a_scheduler_killed_in_the_middle_of_a_callback_lets_another_call_it_again(scenario: Scenario) -> None:
    write(
        scenario,
        """
        def slow(context):
            note(str(os.getpid()), context)
            if not context["is_rerun"]:
                time.sleep(600)

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=[tell("before"), slow])
        """,
    )
    scenario.schedulers[0].service(Notify).close()
    scenario.trigger("d")
    scenario.run_to_end()
    other = subprocess.Popen([sys.executable, "-c", KILLED, scenario.settings.model_dump_json()])
    eventually(lambda: len(told(scenario)) == 2)
    other.kill()
    other.wait()
    eventually(lambda: not Path(f"/proc/{told(scenario)[1]['what']}").exists())
    (scheduler,) = scenario.schedulers
    scheduler.services = (Notify(scenario.engine, scenario.settings, lambda: "s"),)
    assert scheduler.service(Notify).take().taken == 0

    scenario.sql("update notice set claimed_until = clock_timestamp()")
    notify(scenario)

    assert [(one["rerun"], one["attempt"]) for one in told(scenario)] == [(False, 1), (False, 1), (True, 2)]
    assert told(scenario)[0]["what"] == "before"
    assert errors(scenario) == [None]


def test_a_claim_that_was_lost_says_nothing_any_more(scenario: Scenario) -> None:
    write(
        scenario,
        """
        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=tell("on_success"))
        """,
    )
    scenario.schedulers[0].service(Notify).close()
    scenario.trigger("d")
    scenario.run_to_end()
    (one,) = notices.claim_callbacks(scenario.engine, "first", lease_s=60, limit=20)
    scenario.sql("update notice set claimed_until = clock_timestamp()")
    (again,) = notices.claim_callbacks(scenario.engine, "second", lease_s=60, limit=20)

    assert again.id == one.id
    assert notices.begin(scenario.engine, one.id, "first", lease_s=60) is None
    assert not notices.progress(scenario.engine, one.id, "first", done=1, error=None, lease_s=60)
    assert not notices.end(scenario.engine, one.id, "first")
    assert notices.begin(scenario.engine, one.id, "second", lease_s=60) == 1


def test_a_scheduler_that_stops_gives_back_what_it_had_not_begun(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2)
    write(
        scenario,
        """
        def slow(context):
            note("slow", context)
            if context["run_id"] == "r0":
                wait("go")

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", on_success_callback=slow)
        """,
    )
    for number in range(3):
        scenario.trigger("d", run_id=f"r{number}")
    scenario.run_to_end()
    first = next(one for one in scenario.schedulers if one.service(Notify).busy or one.service(Notify).take().taken)
    eventually(lambda: told(scenario))
    stopping = threading.Thread(target=first.service(Notify).close)
    stopping.start()
    signal(scenario, "go")
    stopping.join()
    assert scenario.rows("select count(*) from notice where ended_at is null and claimed_by is not null") == [(0,)]

    notify(scenario)

    seen = sorted((one["run_id"], one["attempt"]) for one in told(scenario))
    assert seen == [("r0", 1), ("r1", 1), ("r2", 1)]


def test_what_a_dead_worker_loses_gives_one_retry_notice_a_try(make_scenario: Callable[..., Scenario]) -> None:
    """A slow callback is no reason to find the same dead try again."""
    scenario = make_scenario(worker={"heartbeat_timeout": 0.5})
    write(
        scenario,
        """
        def slow(context):
            note("retry", context)
            wait("go")

        with DAG("d", schedule=None):
            EmptyOperator(task_id="a", retries=2, on_retry_callback=slow, on_failure_callback=tell("failure"))
        """,
    )
    run = scenario.trigger("d")
    for _ in range(3):
        eventually(lambda: (scenario.turn(), scenario.messages())[1])
        message = scenario.rows("select id, dispatch_id::text from task_instance where state = 'queued'")
        # As if it had registered anew: one that was declared dead claims nothing.
        scenario.sql("update process set stopped_at = null, heartbeat_at = clock_timestamp() where kind = 'worker'")
        assert scenario.claim(message[0]) is not None  # type: ignore[arg-type]
        scenario.sql("update process set heartbeat_at = clock_timestamp() - interval '1 h' where kind = 'worker'")
        for _ in range(5):
            scenario.turn()
    signal(scenario, "go")

    eventually(lambda: (scenario.turn(), scenario.run_state(run) == "failed")[1])
    notify(scenario)

    assert sorted((one["what"], one["try"]) for one in told(scenario)) == [("failure", 3), ("retry", 1), ("retry", 2)]


def test_each_instance_of_a_mapped_task_has_its_callback(scenario: Scenario) -> None:
    write(
        scenario,
        """
        from scheduler.operators import PythonOperator

        def index(context):
            note(str(context["ti"].map_index), context)

        with DAG("d", schedule=None):
            PythonOperator.partial(task_id="a", python_callable=print, on_success_callback=index).expand(op_args=[[1], [2]])
        """,
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()

    notify(scenario)

    assert errors(scenario) == [None, None]
    assert sorted(one["what"] for one in told(scenario)) == ["0", "1"]
    assert (scenario.settings.logs_folder / "d" / "r" / "a" / "1" / "callbacks.log").exists()


def test_callbacks_get_the_params_even_those_that_made_the_task_fail(scenario: Scenario) -> None:
    write(
        scenario,
        """
        from scheduler import Param

        def show(context):
            note(f"{context['params']['x']} {context['params']['y']}", context)

        with DAG("d", schedule=None, params={"x": 1, "y": 2}, on_failure_callback=show):
            EmptyOperator(task_id="a", params={"x": Param(5, type="integer")}, on_failure_callback=show)
        """,
    )
    for conf in ({"y": 7}, {"x": "no number"}):
        scenario.trigger("d", conf=conf)
    scenario.run_to_end(outcome=lambda _: TaskState.FAILED)

    notify(scenario)

    assert errors(scenario) == [None] * 4
    assert sorted(one["what"] for one in told(scenario)) == ["5 7", "5 7", "no number 2", "no number 2"]


def test_a_run_that_timed_out_says_so(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario()
    write(
        scenario,
        """
        with DAG("d", schedule=None, dagrun_timeout=timedelta(hours=1), on_failure_callback=tell("dag_failure")):
            EmptyOperator(task_id="a")
        """.replace("with DAG", "from datetime import timedelta\n        with DAG"),
    )
    run = scenario.trigger("d")
    eventually(lambda: (scenario.turn(), scenario.run_state(run) == "running")[1])
    scenario.sql("update dag_run set timeout_at = clock_timestamp()")

    eventually(lambda: (scenario.turn(), scenario.run_state(run) == "failed")[1])
    notify(scenario)

    assert [(one["what"], one["reason"]) for one in told(scenario)] == [("dag_failure", "timed_out")]
