"""A hostile answer of the child that reads a DAG file becomes an import error of that file, and other files are still read."""

import hashlib
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from support.waiting import eventually

from scheduler.dagfiles import parser as parsing
from scheduler.dagfiles.supervise import DagFileManager
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask

from .conftest import Files
from .test_bad_files import GOOD, MARK

TASK = SerializedTask(task_id="t", operator="EmptyOperator", runtime="empty")
#: The start of each hostile file: it answers in place of the code around it.
ANSWER = MARK + "import os\ndef answer(data):\n    os.write(3, b'\\n\\x1e' + data)\n    os._exit(0)\n"


def content(name: str, **changes: Any) -> dict[str, Any]:
    """A DAG as it is stored; `name` is its id and that of its file."""
    serialized = json.loads(SerializedDag(dag_id=name, file=f"{name}.py", schedule={"kind": "never"}, tasks=(TASK,)).to_json())
    return serialized | changes


def row(data: Any, dag_id: str, **changes: Any) -> dict[str, Any]:
    text = data if isinstance(data, str) else json.dumps(data)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"dag_id": dag_id, "content_hash": digest, "data": text, "is_paused_upon_creation": None} | changes


def answer(name: str, **changes: Any) -> dict[str, Any]:
    """A good answer but for `changes`."""
    return {"dags": [row(content(name), name)], "modules": [], "settled": True} | changes


def dag_answer(name: str, **changes: Any) -> dict[str, Any]:
    return answer(name, dags=[row(content(name, **changes), name)])


def problem(**changes: Any) -> dict[str, Any]:
    return {"problem": {"message": "x", "line": 1, "traceback": ""} | changes}


UNUSABLE = "gave an invalid answer"
ANSWERS: dict[str, Any] = {
    "empty_row": {"dags": [{}]},
    "empty": b"",
    "no_json": b"{",
    "null": b"null",
    "list": [],
    "number": 1,
    "text": "dags",
    "dags_is_text": {"dags": "abc"},
    "dags_is_number": {"dags": 1},
    "row_is_null": {"dags": [None]},
    "wrong_types": answer("wrong_types", modules=[1], settled="yes"),
    "more": answer("more", evil=1),
    "other_file": answer("other_file", file="good.py", duration_s=1.0),
    "no_utf8": b'{"dags": [], "modules": ["\xff\xfe"]}',
    "surrogate": b'{"dags": [], "modules": ["\\ud800"]}',
    "nul": answer("nul", modules=["a\0b"]),
    "nan": b'{"dags": [], "settled": NaN}',
    "deep": b"[" * 100_000,
    "deep_object": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "digits": b'{"problem": {"message": "x", "line": ' + b"9" * 5000 + b"}}",
    "large_line": problem(line=2**40),
    "negative_line": problem(line=-1),
    "long_message": problem(message="x" * 10_000),
    "long_traceback": problem(traceback="x" * 100_000),
    "both": answer("both") | problem(),
    "same_id": answer("same_id", dags=[row(content("same_id"), "same_id")] * 2),
    "many_modules": answer("many_modules", modules=["a"] * 20_000),
    "truncated": json.dumps(answer("truncated")).encode()[:-5],
    "two_lines": json.dumps(answer("two_lines")).encode() + b"\n" + json.dumps(answer("good")).encode() + b"\n",
    "wrong_hash": answer("wrong_hash", dags=[row(content("wrong_hash"), "wrong_hash", content_hash="0" * 64)]),
    "no_hash": answer("no_hash", dags=[row(content("no_hash"), "no_hash", content_hash=None)]),
    "no_dag": answer("no_dag", dags=[row("[]", "no_dag")]),
    "no_content": answer("no_content", dags=[row("not JSON", "no_content")]),
    "other_dag": answer("other_dag", dags=[row(content("good"), "good")]),
    "other_id": answer("other_id", dags=[row(content("other_id"), "good")]),
    "bad_id": answer("bad_id", dags=[row(content("../bad", file="bad_id.py"), "../bad")]),
    "tasks_is_number": dag_answer("tasks_is_number", tasks=1),
    "task_is_text": dag_answer("task_is_text", tasks=["t"]),
    "task_twice": dag_answer("task_twice", tasks=[content("x")["tasks"][0]] * 2),
    "unknown_upstream": dag_answer("unknown_upstream", tasks=[content("x")["tasks"][0] | {"upstream": ["nowhere"]}]),
    "own_upstream": dag_answer("own_upstream", tasks=[content("x")["tasks"][0] | {"upstream": ["t"]}]),
    "unknown_rule": dag_answer("unknown_rule", tasks=[content("x")["tasks"][0] | {"trigger_rule": "never"}]),
    "huge_number": dag_answer("huge_number", tasks=[content("x")["tasks"][0] | {"pool_slots": 2**40}]),
    "long_pool": dag_answer("long_pool", tasks=[content("x")["tasks"][0] | {"pool": "p" * 251}]),
    "queue_of_ours": dag_answer("queue_of_ours", tasks=[content("x")["tasks"][0] | {"queue": "paceline:wakeups"}]),
    "unknown_schedule": dag_answer("unknown_schedule", schedule={"kind": "now"}),
    "no_cron": dag_answer("no_cron", schedule={"kind": "cron", "expression": 1, "timezone": "UTC"}),
    "no_date": dag_answer("no_date", start_date="tomorrow"),
    "naive_date": dag_answer("naive_date", start_date="2025-01-01T00:00:00"),
    "endless_timeout": dag_answer("endless_timeout", dagrun_timeout_s=8.64e13),
    "endless_delay": dag_answer("endless_delay", tasks=[content("x")["tasks"][0] | {"retry_delay_s": 8.64e13}]),
    "endless_deadline": dag_answer("endless_deadline", deadlines=[{"reference": "queued_at", "interval_s": 8.64e13}]),
    "nan_timeout": dag_answer("nan_timeout", dagrun_timeout_s=float("nan")),
}  # fmt: skip
#: Actions of a file instead of an answer, and the resulting error.
DEEDS = {
    "no_answer": ("os._exit(0)", "exit code 0"),
    "much": ("for _ in range(100):\n    os.write(3, b'\\n\\x1e' + b'[' * (1 << 20))\nos._exit(0)", "more than 64 MiB"),
    "fault_report": (
        f"os.write(3, b'  File \"' + __file__.encode() + b'\", line {'9' * 5000} in f\\n')\nos._exit(1)",
        "exit code 1",
    ),
    "real_time_signal": ("os.kill(os.getpid(), 40)", "signal 40"),
    "kills_its_parent": ("import signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "replaces_json": ("import json\njson.dumps = lambda *_, **__: '[]'", UNUSABLE),
    "changes_the_serializer": (
        "from scheduler.serialized.dag import SerializedDag\nSerializedDag.content_hash = 'f' * 64\n"
        "from paceline import DAG\nd = DAG('changes_the_serializer', schedule=None)",
        UNUSABLE,
    ),
}


def test_every_answer_but_a_valid_one_is_an_import_error_of_its_file(files: Files) -> None:
    for name, data in ANSWERS.items():
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        files.write(f"{name}.py", f"{ANSWER}answer({raw!r})\n")
    for name, (deed, _) in DEEDS.items():
        files.write(f"{name}.py", f"{ANSWER}{deed}\n")
    files.write("good.py", GOOD)

    files.read_all(files.manager(parsing_processes=4))

    found = {file.removesuffix(".py"): message for file, (_, message, _) in files.errors().items()}
    assert found.keys() == {*ANSWERS, *DEEDS}
    assert files.dags() == {"good": ("good.py", True, 1)}
    messages = {name: message for name, message in found.items() if name in ANSWERS}
    odd = {name: message for name, message in messages.items() if UNUSABLE not in message}
    assert odd.keys() <= {"nan_timeout"}, odd  # PostgreSQL refuses it
    assert {name: found[name] for name, (_, words) in DEEDS.items() if words not in found[name]} == {}
    assert max(map(len, found.values())) < 1000


def test_an_answer_that_a_child_gives_twice_in_place_of_the_template_costs_one_file_its_answer(files: Files) -> None:
    # Only root can open the pipe of the template process; for others the file cannot be opened, which is an import error as well.
    files.write("good.py", GOOD)
    files.write(
        "forger.py",
        MARK
        + """
import json, os
template = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[1])
line = json.dumps({"dags": [], "problem": None, "modules": [], "settled": False, "file": "nowhere.py", "duration_s": 0.1})
for fd in range(20):
    try:
        with open(f"/proc/{template}/fd/{fd}", "wb", buffering=0) as pipe:
            pipe.write(line.encode() + b"\\n{}\\n\\xff\\n")
    except OSError:
        pass
raise ValueError("tried")
""",
    )

    files.read_all(files.manager())

    assert files.errors().keys() == {"forger.py"}
    assert files.dags() == {"good": ("good.py", True, 1)}


@pytest.mark.parametrize("is_problem_storable", [True, False])
def test_an_error_of_storing_one_file_releases_it_and_other_files_continue(files: Files, is_problem_storable: bool) -> None:
    """A constraint stands in for an unforeseen error in the middle of storing."""
    with files.engine.begin() as connection:
        connection.exec_driver_sql("alter table dag_version add constraint odd check (dag_id <> 'cursed')")
        if not is_problem_storable:
            connection.exec_driver_sql("alter table import_error add constraint odd check (file <> 'cursed.py')")
    files.write("cursed.py", GOOD.replace('"good"', '"cursed"'))
    manager = files.manager(parsing_processes=1)
    files.turn_until(manager, lambda: manager._parser.busy == 0 and not manager._answers)
    files.write("good.py", GOOD)

    files.turn_until(manager, lambda: files.dags())

    assert files.dags() == {"good": ("good.py", True, 1)}
    assert manager._claimed == {}
    assert files.errors().keys() == ({"cursed.py"} if is_problem_storable else set())


def test_a_file_that_postgresql_rejects_each_time_does_not_delay_other_files(files: Files) -> None:
    with files.engine.begin() as connection:
        connection.exec_driver_sql(
            "create function slow() returns trigger language plpgsql as $$ begin"
            " if new.dag_id = 'cursed' then raise exception 'canceling statement' using errcode = '57014'; end if;"
            " return new; end $$"
        )
        connection.exec_driver_sql("create trigger slow before insert on dag_version for each row execute function slow()")
    files.write("cursed.py", GOOD.replace('"good"', '"cursed"'))
    files.write("good.py", GOOD)
    manager = files.manager()
    manager.start()

    eventually(lambda: files.errors() and files.dags(), timeout=60, message=lambda: f"{files.errors()} {files.dags()}")

    assert files.dags() == {"good": ("good.py", True, 1)}
    assert "PostgreSQL cannot store the DAGs" in files.errors()["cursed.py"][1]


@pytest.mark.long
def test_a_file_that_stops_the_process_that_reads_all_files_is_found_and_blamed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "LATE_S", 7.0)
    files.write(
        "stops.py",
        MARK
        + "import os, signal, time\n"
        + 'template = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[1])\n'
        + "os.kill(template, signal.SIGSTOP)\n",
    )
    files.write("good.py", GOOD)

    files.read_all(files.manager(dag_file_processor_timeout=1))

    assert files.dags() == {"good": ("good.py", True, 1)}
    assert "did not answer in time" in files.errors()["stops.py"][1]


def complaint(manager: DagFileManager, *, in_s: float) -> str | None:
    return manager.complaint(time.monotonic() + in_s)


def test_health_reports_that_no_file_is_read(files: Files) -> None:
    manager = files.manager()
    assert complaint(manager, in_s=20) is None
    with files.engine.begin() as connection:
        connection.exec_driver_sql("alter table dag_file rename to elsewhere")
    manager.start()

    eventually(lambda: complaint(manager, in_s=20), timeout=20)
    assert "No DAG file is read" in str(complaint(manager, in_s=20))

    with files.engine.begin() as connection:
        connection.exec_driver_sql("alter table elsewhere rename to dag_file")
    eventually(lambda: complaint(manager, in_s=20) is None, timeout=20)


def test_a_path_that_is_too_long_for_the_database_is_passed_over(files: Files) -> None:
    # Random, so that an index cannot compress it.
    parts = [hashlib.sha512(bytes([number])).hexdigest() for number in range(30)]
    files.write("/".join([*parts, "long.py"]), GOOD.replace('"good"', '"long"'))
    files.write("good.py", GOOD)
    manager = files.manager()

    files.read_all(manager, now=datetime.now(UTC))

    assert files.dags() == {"good": ("good.py", True, 1)}
