"""Callbacks that fail, hang, end their process or write hostile output, and processes that die or stop meanwhile."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.notices import HEAD, calls, errors, notify, signal, write, write_calling
from support.processes import is_running
from support.scenario import Scenario
from support.waiting import eventually

from scheduler.dagfiles.answers import Opened
from scheduler.dagfiles.parser import CallbackHost
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
    assert scheduler.service(Notify).take() == 0

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
    first = next(one for one in scenario.schedulers if one.service(Notify).busy or one.service(Notify).take())
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


#: Writes into every pipe that the process has.
ANSWER = """
import stat, time
def answer(data):
    for fd in range(3, 100):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, data)
        except OSError:
            pass
"""
CALL = "def bad(context):\n    answer({!r})\n    os._exit(0)\n"
GOOD = b'{"count": 1, "error": null}\n'
ANSWERS = {
    "no_json": b"{\n",
    "empty": b"\n",
    "list": b"[]\n",
    "null": b"null\n",
    "wrong_types": b'{"count": "1", "error": 1}\n',
    "count_is_true": b'{"count": true, "error": null}\n',
    "endless_count": b'{"count": 1000000000, "error": null}\n',
    "negative_count": b'{"count": -1, "error": null}\n',
    "no_utf8": b'{"count": 1, "error": "\xff"}\n',
    "nul": b'{"count": 1, "error": "a\\u0000b"}\n',
    "surrogate": b'{"count": 1, "error": "\\ud800"}\n',
    "nul_in_a_key": b'{"problem": null, "a\\u0000b": 1}\n',
    "long_error": b'{"count": 1, "error": "' + b"x" * 10_000 + b'"}\n',
    "deep": b"[" * 50_000 + b"\n",
    "digits": b'{"count": ' + b"9" * 5000 + b"}\n",
    "two": GOOD * 2,
    "says_it_ended": b'{"ended": 0}\n',
    "speaks_of_a_load": b'{"problem": null}\n',
    "unfinished": b'{"count": 1',
}
DEEDS = {
    "flood": "def bad(context):\n    while True:\n        answer(b'x' * 60_000)\n",
    "stops": "import signal\ndef bad(context):\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(600)\n",
    "closes": "def bad(context):\n    os.closerange(3, 100)\n    os._exit(3)\n",
}
DAG = """
with DAG("{}", schedule=None):
    EmptyOperator(task_id="a", on_success_callback={})
"""


def test_each_is_the_failure_of_its_callback_and_a_good_callback_is_called_once(scenario: Scenario) -> None:
    for name, data in ANSWERS.items():
        write(scenario, ANSWER + CALL.format(data) + DAG.format(name, "bad"), name)
    for name, deed in DEEDS.items():
        write(scenario, ANSWER + deed + DAG.format(name, "bad"), name)
    write(scenario, DAG.format("good", 'tell("good")'), "good")
    names = [*ANSWERS, *DEEDS, "good"]
    for name in names:
        scenario.trigger(name, run_id="r")
    scenario.run_to_end()

    notify(scenario)

    found = dict(scenario.rows("select r.dag_id, n.error from notice n join dag_run r on r.id = n.dag_run_id"))
    assert found.keys() == set(names)
    # A valid answer ends its own callback, and no other.
    lies = {"two"}
    assert {name for name, error in found.items() if error is None} <= {"good", *lies}
    assert [(call["what"], call["attempt"]) for call in calls(scenario)] == [("good", 1)]
    assert all(len(error) < 2500 for error in found.values() if error)
    # "stops" kills the process that runs callbacks; no answer does.
    assert {name for name, error in found.items() if error and "together with" in error} <= {"stops"}


def test_an_error_with_a_nul_or_half_a_surrogate_is_noted(scenario: Scenario) -> None:
    write(
        scenario,
        """
        def nul(context):
            raise ValueError("a\\0b")

        def half(context):
            raise ValueError("\\ud800")

        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("no words")

        def odd(context):
            raise Odd

        with DAG("d", schedule=None):
            for task_id, callback in (("a", nul), ("b", half), ("c", odd)):
                EmptyOperator(task_id=task_id, on_success_callback=callback)
        """,
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()

    notify(scenario)

    assert sorted(map(str, errors(scenario))) == ["Odd", "ValueError: \\ud800", "ValueError: a\\x00b"]


def test_processes_that_a_callback_leaves_behind_end_with_its_file(scenario: Scenario, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    write(
        scenario,
        f"""
import ctypes
def bad(context):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, 0)
            open({str(pid)!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    while not pathlib.Path({str(pid)!r}).exists() or not pathlib.Path({str(pid)!r}).read_text():
        time.sleep(0.01)
{DAG.format("d", "bad")}
""",
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()

    notify(scenario)

    left = int(pid.read_text())
    eventually(lambda: not is_running(left))


def test_requests_that_arrive_together_are_each_heeded(scenario: Scenario) -> None:
    """As when a child ends before the request to end: that request then has no receiver, and the next one is for the next file."""
    write(scenario, DAG.format("good", 'tell("good")'), "good")
    host = CallbackHost(scenario.settings)
    log = str(scenario.settings.dags_folder.parent / "log")
    assert host.open("good.py", log) is None
    host.close()
    assert host._process is not None

    opening = {
        "folder": str(scenario.settings.dags_folder), "file": "good.py", "log": log, "timezone": "UTC",
        "airflow_imports": False, "load_timeout_s": 30, "timeout_s": 30, "memory_limit_mb": 1024,
    }  # fmt: skip
    os.write(host._process.requests_fd, b'{"stop": true}\n' + json.dumps(opening).encode() + b"\n")

    assert host._answer(host._process, time.monotonic() + 20) == Opened(problem=None)
    host.kill()
