"""Hostile output of a callback in the pipes of its process ends that callback; callbacks of other files are called."""

import json
import os
import time
from pathlib import Path

from support.notices import calls, errors, notify, write
from support.processes import is_running
from support.scenario import Scenario
from support.waiting import eventually

from scheduler.dagfiles.answers import Opened
from scheduler.dagfiles.callback_host import CallbackHost

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
