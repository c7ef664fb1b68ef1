"""A bad DAG file costs one child process and becomes an import error; the others load, also with Airflow's modules."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from support.processes import is_running
from support.waiting import eventually

from scheduler.dagfiles.answers import Answer
from scheduler.dagfiles.parser import CallbackHost, Parser
from scheduler.settings import Settings

from .conftest import Files

GOOD = """
from paceline import DAG, task

with DAG("good", schedule="@daily"):
    @task
    def one():
        return 1

    one()
"""
MARK = "# a dag of the scheduler\n"
BAD = {
    "syntax error": ("x = 1\ndef broken(:\n", 3, "SyntaxError: invalid syntax"),
    "raises": ("def f():\n    return 1 / 0\n\nf()\n", 3, "ZeroDivisionError: division by zero"),
    "sys.exit": ("import sys\nsys.exit(3)\n", 3, "calls sys.exit(3) while it is read"),
    "os._exit": ("import os\nos._exit(0)\n", None, "ended its process with exit code 0"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt\n", 2, "KeyboardInterrupt"),
    "endless loop": ("while True:\n    pass\n", None, "took more than 1 s"),
    "sleeps": ("import time\n\ntime.sleep(600)\n", 4, "took more than 1 s"),
    "2 GB": ("x = bytearray(2 * 1024**3)\n", 2, "needs more than 256 MiB of memory"),
    "grows": ("x = []\nwhile True:\n    x.append(bytearray(16 * 1024**2))\n", 4, "needs more than 256 MiB of memory"),
    "segfault": ("import ctypes\nctypes.string_at(0)\n", 3, "SIGSEGV: a segmentation fault"),
    "abort": ("import os\nos.abort()\n", 3, "SIGABRT"),
    "deep recursion": ("def f():\n    f()\n\nf()\n", 3, "RecursionError"),
    "not UTF-8": (b"# caf\xe9\n", 2, "is not UTF-8: save it as UTF-8"),
    "cycle": (
        "from paceline import DAG\nfrom paceline.operators import EmptyOperator\n"
        "with DAG('c'):\n    a = EmptyOperator(task_id='a')\n    a >> EmptyOperator(task_id='b') >> a\n",
        None,
        "cycle",
    ),
    "bad cron": ("from paceline import DAG\nDAG('c', schedule='every day')\n", 3, "every day"),
    "unknown argument": ("from paceline import DAG\nDAG('c', shedule='@daily')\n", 3, "schedule"),
    "NUL in its message": ("raise ValueError('a\\0b')\n", 2, "a\\x00b"),
    "surrogate in its message": ("raise ValueError('\\ud800')\n", 2, "ud800"),
    "NUL in a DAG": ("from paceline import DAG\nd = DAG('c', description='a\\0b')\n", None, "PostgreSQL cannot store"),
    "prints without end": ("while True:\n    print('x' * 1000)\n", None, "took more than 1 s"),
    "prints 100 MB and fails": ("for _ in range(100):\n    print('x' * 1024**2)\n1 / 0\n", 4, "ZeroDivisionError"),
    "closes its descriptors": ("import os\nos.closerange(0, 100)\n", None, "ended its process"),
    "kills the process that reads all files": ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n", None, "SIGKILL"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_an_import_error_and_the_good_file_beside_it_is_stored(case: str, files: Files) -> None:
    source, line, message = BAD[case]
    files.write("bad.py", MARK.encode() + source if isinstance(source, bytes) else MARK + source)
    files.write("good.py", GOOD)
    manager = files.manager(dag_file_processor_timeout=1 if "took more" in message else 20, dag_file_memory_limit_mb=256)

    files.read_all(manager)

    assert files.dags() == {"good": ("good.py", True, 1)}
    found = files.errors()
    assert found.keys() == {"bad.py"}
    assert message in found["bad.py"][1]
    assert "\n" not in found["bad.py"][1]
    if line is not None:
        assert found["bad.py"][0] == line


def test_a_problem_is_logged_once_however_often_the_file_is_read(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.write("bad.py", MARK + "1 / 0\n")
    manager = files.manager()

    for minute in range(3):
        files.read_all(manager, now=datetime(2030, 1, 1, 0, minute, tzinfo=UTC))

    assert files.rows("select extract(minute from parsed_at) from dag_file") == [(2,)]
    assert caplog.text.count("bad.py cannot be used: ZeroDivisionError") == 1


def test_a_traceback_shows_the_authors_frames_only(files: Files) -> None:
    files.write("parts/deep.py", "def f():\n    raise ValueError('deep')\n")
    files.write("bad.py", MARK + "from parts.deep import f\nf()\n")

    files.read_all(files.manager())

    line, message, traceback = files.errors()["bad.py"]
    assert (line, message) == (3, "ValueError: deep")
    assert [part.split('"')[1].rsplit("/", 2)[1:] for part in traceback.splitlines() if part.startswith("  File")] == [
        ["dags", "bad.py"],
        ["parts", "deep.py"],
    ]


def test_processes_that_a_file_starts_end_with_its_child(files: Files, tmp_path: Path) -> None:
    files.write(
        "forks.py",
        MARK
        + f"""
import os, subprocess, time
for _ in range(20):
    if os.fork() == 0:
        time.sleep(600)
with open({str(tmp_path / "pid")!r}, "w") as f:
    f.write(str(subprocess.Popen(["sleep", "600"]).pid))
""",
    )

    files.read_all(files.manager())

    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not is_running(pid))
    assert files.errors() == {}


def test_stop_kills_the_children_and_gives_their_files_back(files: Files, tmp_path: Path) -> None:
    files.write(
        "hangs.py", MARK + f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    manager = files.manager()
    files.turn_until(manager, lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    assert files.rows("select claimed_by from dag_file") == [("a",)]

    manager.stop()

    assert not psutil.pid_exists(pid)
    assert files.rows("select claimed_by from dag_file") == [(None,)]


def test_the_children_of_a_killed_scheduler_end(files: Files, tmp_path: Path) -> None:
    files.write(
        "hangs.py", MARK + f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    scheduler = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom scheduler.dagfiles.parser import Parser\nfrom scheduler.settings import Settings\n"
            "Parser(Settings.model_validate_json(sys.argv[1])).submit(['hangs.py'])\ntime.sleep(600)",
            files.settings.model_dump_json(),
        ]
    )
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())

    scheduler.kill()
    scheduler.wait()

    eventually(lambda: not is_running(pid))


def test_a_file_sees_no_password_and_where_home_is(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", "postgresql://u:hidden@h/d")
    for name in ("BROKER_URL", "WORKER_DATABASE_URL", "DATABASE_OWNER_URL", "CORE_FERNET_KEY", "CONN_X", "SMTP_PASSWORD"):
        monkeypatch.setenv(f"PACELINE_{name}", "redis://:hidden@h/0")
    monkeypatch.setenv("PGPASSWORD", "hidden")
    # A variable may decide which DAGs a file defines, as in Airflow.
    monkeypatch.setenv("PACELINE_VAR_REGIONS", "3")
    monkeypatch.setenv("MINE", "seen")
    seen = "{k: v for k, v in os.environ.items() if k.startswith(('PACE', 'PG', 'MINE'))}"
    files.write("env.py", f"{MARK}import os\nraise ValueError({seen})")

    files.read_all(files.manager())

    message = files.errors()["env.py"][1]
    assert "hidden" not in message and "'MINE': 'seen'" in message and "'PACELINE_VAR_REGIONS': '3'" in message
    assert f"'PACELINE_HOME': '{files.settings.home}'" in message


def test_a_hostile_folder_and_working_directory_shadow_nothing(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "raise RuntimeError('shadowed')\n"
    working = tmp_path / "cwd"
    working.mkdir()
    for name in ("config.py", "workers.py", "__init__.py", "json.py", "sqlalchemy.py", "jinja2.py"):
        files.write(name, hostile)
        (working / name).write_text(hostile)
    (working / "scheduler.py").write_text(hostile)
    files.write("scheduler.py", GOOD.replace('"good"', '"named_like_us"'))
    files.write("good.py", "import json, workers, sqlalchemy\n" + GOOD)
    monkeypatch.chdir(working)

    files.read_all(files.manager())

    assert files.errors() == {}
    assert files.dags().keys() == {"good", "named_like_us"}


def test_a_bom_and_a_file_without_dags_are_fine(files: Files) -> None:
    files.write("bom.py", b"\xef\xbb\xbf" + GOOD.encode())
    files.write("none.py", MARK + "x = 1\n")

    files.read_all(files.manager())

    assert files.errors() == {}
    assert files.dags() == {"good": ("bom.py", True, 1)}
    assert files.rows("select path, dag_count from dag_file order by path") == [("bom.py", 1), ("none.py", 0)]


def test_a_missing_folder_stops_nothing_and_forgets_nothing(files: Files) -> None:
    files.write("good.py", GOOD)
    manager = files.manager(dag_dir_list_interval=0.01)
    files.read_all(manager)

    files.settings.dags_folder.rename(files.settings.dags_folder.with_name("away"))
    manager.run_once()
    assert files.dags() == {"good": ("good.py", True, 1)}

    files.settings.dags_folder.with_name("away").rename(files.settings.dags_folder)
    files.write("new.py", GOOD.replace('"good"', '"new"'))
    files.turn_until(manager, lambda: "new" in files.dags())


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_an_import_error(files: Files) -> None:
    files.write("locked.py", GOOD)
    (files.settings.dags_folder / "locked.py").chmod(0)

    files.read_all(files.manager())

    assert files.errors()["locked.py"][1] == "The file cannot be read: Permission denied."


SOURCE = """\
from airflow import DAG
from airflow.operators.dummy import DummyOperator

with DAG("old", schedule_interval="@daily", on_failure_callback=print):
    DummyOperator(task_id="a")
"""


def settings_of(folder: Path, *, airflow_imports: bool) -> Settings:
    (folder / "dags").mkdir()
    (folder / "dags" / "d.py").write_text(SOURCE)
    return Settings.load(
        {
            "PACELINE_HOME": str(folder / "home"),
            "PACELINE_DAGS_FOLDER": str(folder / "dags"),
            "PACELINE_CORE_AIRFLOW_IMPORTS": str(airflow_imports).lower(),
        }
    )


def parsed(settings: Settings) -> Answer:
    parser = Parser(settings)
    try:
        parser.submit(["d.py"])
        while not (answers := parser.collect()):
            assert parser.wait(30)
        return answers[0]
    finally:
        parser.stop()


def test_the_parser_answers_them_if_they_are_on(tmp_path: Path) -> None:
    answer = parsed(settings_of(tmp_path, airflow_imports=True))

    assert (answer.problem, [row.dag_id for row in answer.dags]) == (None, ["old"])


def test_they_are_off_by_default(tmp_path: Path) -> None:
    answer = parsed(settings_of(tmp_path, airflow_imports=False))

    assert answer.problem is not None
    assert answer.problem.message.splitlines()[:2] == [
        "Correct these imports:",
        "line 1: Airflow is not installed; write `from paceline import DAG`.",
    ]


def test_callbacks_run_in_such_a_file(tmp_path: Path) -> None:
    host = CallbackHost(settings_of(tmp_path, airflow_imports=True))
    try:
        assert host.open("d.py", str(tmp_path / "log")) is None
        host.close()
    finally:
        host.kill()
