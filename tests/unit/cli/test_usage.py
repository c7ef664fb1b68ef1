"""The command line without a database: usage, errors, exit codes, settings."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from paceline.exceptions import NotFoundError
from scheduler.cli import ALIASES, COMMANDS, SECTIONS, lazy, paceline
from scheduler.cli.options import MOMENT
from scheduler.cli.processes import default_concurrency
from scheduler.settings import Settings

NOWHERE = {"PACELINE_DATABASE_URL": "postgresql://u:secret@127.0.0.1:1/d", "PACELINE_BROKER_URL": "redis://:secret@127.0.0.1:1/0"}


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs `paceline ...` with a home of its own and nothing else set."""
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **env: str) -> Result:
        return CliRunner().invoke(paceline, arguments, env={"PACELINE_HOME": str(tmp_path / "home"), **env})

    return run


def test_help_lists_every_command_without_importing_the_engine() -> None:
    code = (
        "import sys; from scheduler.cli import paceline\n"
        "try: paceline.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('sqlalchemy', 'celery', 'redis', 'pydantic', 'pyspark') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip().endswith("[]")
    assert [name for name in COMMANDS if f"  {name}" not in done.stdout] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_has_help(call, name: str) -> None:
    done = call(name, "--help")

    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: paceline {name}")


def test_every_command_that_reads_takes_json() -> None:
    reading = ["dags list", "dags show", "dags graph", "dags errors", "runs list", "runs show", "runs watch", "tasks list",
               "tasks logs", "pools list", "workers list", "config show", "config get", "config check", "db check", "doctor",
               "dags trigger", "dags test"]  # fmt: skip
    for words in reading:
        command: click.Command = paceline
        for word in words.split():
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), word)
            assert found is not None, words
            command = found
        assert "--json" in [option for parameter in command.params for option in parameter.opts], words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dgas",), "There is no command 'dgas'; did you mean 'dags'?"),
        (("dags", "lst"), "There is no command 'lst'; did you mean 'list'?"),
        (("backfill", "crate"), "There is no command 'crate'; did you mean 'create'?"),
        (("pools", "zzz"), "There is no command 'zzz'; `paceline pools --help` lists the commands."),
    ],
)
def test_a_misspelt_command_gets_a_near_match_and_exit_code_2(call, words: tuple[str, ...], message: str) -> None:
    done = call(*words)

    assert done.exit_code == 2
    assert message in done.stderr


def test_help_has_sections_and_fits_80_columns(call) -> None:
    done = call("--help", COLUMNS="80")

    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert [title for title in SECTIONS if f"{title}:" not in done.stdout] == []
    # No line of a command continues on the next one.
    assert [name for name, line in COMMANDS.items() if not re.search(rf"  {name} +{re.escape(line)}\n", done.stdout)] == []


def test_an_earlier_name_of_a_command_still_works(call) -> None:
    for alias, name in ALIASES.items():
        assert call(alias, "--help").stdout == call(name, "--help").stdout.replace(f"paceline {name}", f"paceline {alias}")
        assert f"  {alias} " not in call("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dags", "trigger", "d", "--conf", "[1]"], "not an object"),
        (["dags", "trigger", "d", "--conf", "{"], "is not JSON"),
        (["dags", "trigger", "d", "--conf", '{"a": NaN}'], "is not JSON"),
        (["dags", "trigger", "d", "--conf", '{"a": "\\u0000"}'], "NUL"),
        (["dags", "trigger", "d", "--run-id", "a/../b"], "letters, digits"),
        (["dags", "trigger", "d", "--run-id", ".."], "letters, digits"),
        (["dags", "trigger", "d", "--run-id", "x" * 251], "letters, digits"),
        (["dags", "trigger", "d", "--run-id", ""], "letters, digits"),
        (["dags", "trigger", "d", "--logical-date", "yesterday"], "is not an ISO 8601 time"),
        (["dags", "trigger", "d", "--logical-date", "monday"], "not an ISO 8601 time"),
        (["dags", "trigger", "d", "--timeout", "3"], "--timeout needs --wait"),
        (["runs", "list", "--state", "lost"], "'queued', 'running', 'success', 'failed'"),
        (["runs", "list", "--limit", "0"], "--limit must be a whole number of at least 1"),
        (["pools", "set", "p", "-2"], "SLOTS must be a whole number of at least -1"),
        (["pools", "set", " ", "3"], "1 to 250 characters"),
        (["pools", "set", "x" * 251, "3"], "1 to 250 characters"),
        (["pools", "set", "p", "3", "--queue", "unacked"], "is a key that Paceline or Celery keeps in Redis"),
        (["tasks", "logs", "d", "r", "t", "-f", "--json"], "leave out --follow"),
        (["worker", "-q", "a,,b"], "an empty name"),
        (["worker", "-c", "0"], "--concurrency must be a whole number from 1 to 1,024"),
        (["config", "get", "core.paralelism"], "did you mean core.parallelism?"),
    ],
)
def test_wrong_usage_is_reported_with_exit_code_2(call, arguments: list[str], words: str) -> None:
    done = call(*arguments, **NOWHERE)

    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["dags", "list"], ["runs", "list"], ["pools", "list"], ["workers", "list"], ["db", "check"], ["db", "migrate"]],
)
def test_an_unreachable_database_is_exit_code_4_and_one_sentence(call, arguments: list[str]) -> None:
    done = call(*arguments, **NOWHERE)

    assert done.exit_code == 4
    assert done.stdout == ""
    assert done.stderr.startswith("Error: PostgreSQL does not answer: ")
    assert "correct PACELINE_DATABASE_URL" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_adds_the_stack_trace_and_a_bad_setting_is_exit_code_2(call) -> None:
    done, bad = call("--debug", "dags", "list", **NOWHERE), call("dags", "list", PACELINE_CORE_PARALLELISM="many")

    assert done.exit_code == 4 and "Traceback (most recent call last)" in done.stderr
    assert bad.exit_code == 2 and "core.parallelism" in bad.stderr


def test_config_show_masks_passwords_and_names_the_source(call) -> None:
    shown = call("config", "show", **NOWHERE)
    as_json = call("config", "show", "--json", **NOWHERE)

    assert shown.exit_code == as_json.exit_code == 0
    assert "secret" not in (shown.stdout + as_json.stdout).replace("client_secret", "")
    assert "PACELINE_DATABASE_URL" in shown.stdout
    assert json.loads(as_json.stdout)["database"]["url"] == "postgresql://u:***@127.0.0.1:1/d"


def test_config_get_takes_key_or_environment_name(call, tmp_path: Path) -> None:
    assert call("config", "get", "paths.home").stdout.strip() == str(tmp_path / "home")
    assert call("config", "get", "PACELINE_WORKER_CONCURRENCY", "--json").stdout.strip() == "16"
    assert "secret" not in call("config", "get", "broker.url", **NOWHERE).stdout


def test_config_check_passes_and_refuses(call) -> None:
    assert call("config", "check").exit_code == 0
    assert json.loads(call("config", "check", "--json").stdout)["ok"] is True
    assert call("config", "check", PACELINE_FLOWER_PORT="-1").exit_code == 2


def test_doctor_reports_unreachable_servers_and_bad_settings_and_exits_1(call) -> None:
    done = call("doctor", "--json", **NOWHERE)
    report = json.loads(done.stdout)

    broken = {check["check"]: check for check in report["checks"] if not check["ok"]}
    assert (done.exit_code, report["ok"]) == (1, False)
    assert {"database", "broker", "dags folder"} <= set(broken)
    assert all(check["fix"] for check in broken.values())
    assert report["versions"]["celery"].startswith("5.7")
    assert "secret" not in done.output
    done = call("doctor", PACELINE_CORE_PARALLELISM="0")
    assert done.exit_code == 1 and "core.parallelism" in done.stdout


@pytest.mark.parametrize(
    ("url", "ok", "message"),
    [
        ("/logs", True, "/logs"),
        ("gs://bucket/logs", False, "gs://bucket/logs cannot be used: Please install gcsfs"),
        ("nosuch://me:secret@host/x", False, "nosuch://me:***@host/x has a scheme that fsspec does not know"),
    ],
)
def test_doctor_shows_where_logs_are_copied_or_why_they_cannot(call, url: str, ok: bool, message: str) -> None:
    done = call("doctor", "--json", PACELINE_LOGS_URL=url, **NOWHERE)

    (found,) = [check for check in json.loads(done.stdout)["checks"] if check["check"] == "log copies"]
    assert found["ok"] is ok and found["message"].startswith(message) and bool(found["fix"]) is not ok
    assert "secret" not in done.output


def group(command: click.Command) -> lazy.LazyGroup:
    """A group like that of `paceline`, with one command."""
    group = lazy.LazyGroup("paceline", sections={"DAGs": {"dags": ""}})
    group.add_command(command, "dags")
    return group


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (ZeroDivisionError("by zero\nsecond line"), 1,
         "Error: Unexpected ZeroDivisionError: by zero. `paceline --debug ...` shows where.\n"),
        (NotFoundError("There is no DAG 'x'."), 3, "Error: There is no DAG 'x'.\n"),
    ],
)  # fmt: skip
def test_an_error_is_one_sentence_with_its_exit_code(error: Exception, exit_code: int, message: str) -> None:
    @click.command()
    def broken() -> None:
        raise error

    done = CliRunner().invoke(group(broken), ["dags"])

    assert (done.exit_code, done.stderr) == (exit_code, message)


def test_ctrl_c_is_exit_code_130() -> None:
    code = (
        "import os, signal, click; from scheduler.cli import main, paceline\n"
        "@click.command()\n"
        "def wait(): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "paceline.add_command(wait, 'dags')\n"
        "main(['dags'])"
    )

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=30)

    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "Interrupted.\n")


def test_python_m_runs_the_same_command_from_a_hostile_folder(tmp_path: Path) -> None:
    for name in ("config.py", "workers.py", "click.py", "scheduler.py", "paceline.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the working directory')\n")

    done = subprocess.run(
        [sys.executable, "-P", "-m", "scheduler.cli", "--version"], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("paceline ")


def test_a_time_without_an_offset_is_meant_on_the_clocks_of_the_default_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CORE_DEFAULT_TIMEZONE", "Europe/Berlin")

    with click.Context(click.Command("x")).scope():
        assert MOMENT.convert("2026-07-01", None, None).isoformat() == "2026-07-01T00:00:00+02:00"
        assert MOMENT.convert("2026-07-01T06:00:00+00:00", None, None).isoformat() == "2026-07-01T06:00:00+00:00"


@pytest.mark.parametrize(
    ("queues", "environment", "concurrency"),
    [
        (["default", "spark"], {}, 16),
        (["spark-heavy"], {}, 1),
        (["spark", "spark-heavy"], {}, 1),
        (["spark-heavy"], {"PACELINE_WORKER_CONCURRENCY": "3"}, 3),
        (["spark-heavy"], {"PACELINE_CORE_HEAVY_SPARK_QUEUE": "big"}, 16),
    ],
)
def test_a_worker_of_heavy_spark_tasks_takes_one_at_a_time_by_default(
    queues: list[str], environment: dict[str, str], concurrency: int
) -> None:
    assert default_concurrency(Settings.load(environment), queues) == concurrency


@pytest.mark.parametrize("arguments", [["variables", "get", "x"], ["dags", "list"]])
def test_where_nothing_was_started_standalone_is_named(call, tmp_path, arguments: list[str]) -> None:
    done = call(*arguments, PACELINE_HOME=str(tmp_path), PACELINE_DATABASE_URL="")

    assert done.exit_code == 4
    assert "Start everything on this machine with `paceline standalone`, or set PACELINE_DATABASE_URL." in done.stderr
