"""Callbacks that fail, hang or end their process, and schedulers and workers that die or stop meanwhile."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.notices import HEAD, calls, errors, notify, signal, write, write_calling
from support.scenario import Scenario
from support.waiting import eventually

from scheduler.services.notify import Notify
from scheduler.store.db.database import transact
from scheduler.store.upkeep import notices

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


def test_a_callback_that_raises_is_ended_with_its_error_and_stops_no_other(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    write_calling(
        scenario,
        "[tell('first'), bad, tell('third')]",
        """
        def bad(context):
            print("about to fail")
            raise ValueError("no such channel")
        """,
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()

    notify(scenario)

    assert [call["what"] for call in calls(scenario)] == ["first", "third"]
    assert errors(scenario) == ["ValueError: no such channel"]
    log = (scenario.settings.logs_folder / "d" / "r" / "a" / "callbacks.log").read_text()
    assert "about to fail" in log and "Traceback" in log
    assert "The on_success callback of d.a (run r, try 1) failed: ValueError: no such channel." in caplog.text
    assert [row["error"] for row in transact(scenario.engine, notices.notices, dag_id="d", failed=True)] == [
        "ValueError: no such channel"
    ]


def test_a_callback_whose_process_dies_is_repeated_and_finds_that_in_its_context(scenario: Scenario) -> None:
    write_calling(
        scenario,
        "[tell('before'), dies_once, tell('after')]",
        """
        def dies_once(context):
            note("dies", context)
            if not context["is_rerun"]:
                os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()

    notify(scenario)

    assert [(call["what"], call["rerun"], call["attempt"]) for call in calls(scenario)] == [
        ("before", False, 1), ("dies", False, 1), ("dies", True, 2), ("after", False, 2),
    ]  # fmt: skip
    assert errors(scenario) == [None]


def test_a_callback_that_always_ends_its_process_is_given_up(scenario: Scenario) -> None:
    write_calling(
        scenario,
        "[dies, tell('after')]",
        """
        def dies(context):
            note("dies", context)
            os._exit(7)
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()

    notify(scenario)

    assert [(call["what"], call["attempt"]) for call in calls(scenario)] == [
        ("dies", 1),
        ("dies", 2),
        ("dies", 3),
        ("after", 3),
    ]
    assert errors(scenario) == ["its process ended (exit code 7)"]


def test_a_callback_that_takes_too_long_is_ended_and_not_called_again(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"callback_execution_timeout": 0.5})
    write_calling(
        scenario,
        "[hangs, tell('after')]",
        """
        def hangs(context):
            note("hangs", context)
            time.sleep(600)
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()

    notify(scenario)

    assert [call["what"] for call in calls(scenario)] == ["hangs", "after"]
    assert errors(scenario) == ["it took more than 0.5 s and was killed"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("gone", "The DAG file .*d.py cannot be loaded: FileNotFoundError"),
        ("raise RuntimeError('half saved')", "cannot be loaded: RuntimeError: half saved"),
        ("os._exit(3)", r"cannot be loaded: while it was loaded, its process ended \(exit code 3\)"),
        ("DAG('other')", "DAG d is no longer in its file"),
        ("with DAG('d'): EmptyOperator(task_id='a')", "has no on_success callback any more"),
    ],
)
def test_a_change_of_the_file_is_named_in_the_error(scenario: Scenario, change: str, complaint: str) -> None:
    write_calling(scenario, "tell('on_success')")
    scenario.trigger("d")
    scenario.run_to_end()
    path = scenario.settings.dags_folder / "d.py"
    path.write_text(HEAD + change)
    if change == "gone":
        path.unlink()

    notify(scenario)

    assert calls(scenario) == []
    assert re.search(complaint, errors(scenario)[0] or "")


def test_a_scheduler_killed_in_the_middle_of_a_callback_lets_another_call_it_again(scenario: Scenario) -> None:
    write_calling(
        scenario,
        "[tell('before'), slow]",
        """
        def slow(context):
            note(str(os.getpid()), context)
            if not context["is_rerun"]:
                time.sleep(600)
        """,
    )
    scenario.schedulers[0].service(Notify).close()
    scenario.trigger("d")
    scenario.run_to_end()
    other = subprocess.Popen([sys.executable, "-c", KILLED, scenario.settings.model_dump_json()])
    eventually(lambda: len(calls(scenario)) == 2)
    other.kill()
    other.wait()
    eventually(lambda: not Path(f"/proc/{calls(scenario)[1]['what']}").exists())
    (scheduler,) = scenario.schedulers
    scheduler.services = (Notify(scenario.engine, scenario.settings, lambda: "s"),)
    assert scheduler.service(Notify).take().taken == 0

    scenario.sql("update notice set claimed_until = clock_timestamp()")
    notify(scenario)

    assert [(call["rerun"], call["attempt"]) for call in calls(scenario)] == [(False, 1), (False, 1), (True, 2)]
    assert calls(scenario)[0]["what"] == "before"
    assert errors(scenario) == [None]


def test_a_lost_claim_stores_no_result(scenario: Scenario) -> None:
    write_calling(scenario, "tell('on_success')")
    scenario.schedulers[0].service(Notify).close()
    scenario.trigger("d")
    scenario.run_to_end()
    (one,) = transact(scenario.engine, notices.claim, "first", emails=False, lease_s=60, limit=20)
    scenario.sql("update notice set claimed_until = clock_timestamp()")
    (again,) = transact(scenario.engine, notices.claim, "second", emails=False, lease_s=60, limit=20)

    assert again.id == one.id
    assert transact(scenario.engine, notices.begin, one.id, "first", lease_s=60) is None
    assert not transact(scenario.engine, notices.progress, one.id, "first", done=1, error=None, lease_s=60)
    assert not transact(scenario.engine, notices.end, one.id, "first")
    assert transact(scenario.engine, notices.begin, one.id, "second", lease_s=60) == 1


def test_a_scheduler_that_stops_releases_the_notices_that_it_had_not_begun(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2)
    write_calling(
        scenario,
        "slow",
        """
        def slow(context):
            note("slow", context)
            if context["run_id"] == "r0":
                wait("go")
        """,
    )
    for number in range(3):
        scenario.trigger("d", run_id=f"r{number}")
    scenario.run_to_end()
    first = next(one for one in scenario.schedulers if one.service(Notify).busy or one.service(Notify).take().taken)
    eventually(lambda: calls(scenario))
    stopping = threading.Thread(target=first.service(Notify).close)
    stopping.start()
    signal(scenario, "go")
    stopping.join()
    assert scenario.rows("select count(*) from notice where ended_at is null and claimed_by is not null") == [(0,)]

    notify(scenario)

    seen = sorted((call["run_id"], call["attempt"]) for call in calls(scenario))
    assert seen == [("r0", 1), ("r1", 1), ("r2", 1)]


def test_each_try_of_a_lost_worker_has_one_retry_notice(make_scenario: Callable[..., Scenario]) -> None:
    """During a slow callback, the same lost try is not found again."""
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
        # As if the worker had registered again: a worker that was declared lost claims nothing.
        scenario.sql("update process set stopped_at = null, heartbeat_at = clock_timestamp() where kind = 'worker'")
        assert scenario.claim(message[0]) is not None  # type: ignore[arg-type]
        scenario.sql("update process set heartbeat_at = clock_timestamp() - interval '1 h' where kind = 'worker'")
        for _ in range(5):
            scenario.turn()
    signal(scenario, "go")

    eventually(lambda: (scenario.turn(), scenario.run_state(run) == "failed")[1])
    notify(scenario)

    assert sorted((call["what"], call["try"]) for call in calls(scenario)) == [("failure", 3), ("retry", 1), ("retry", 2)]
