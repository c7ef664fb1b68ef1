"""The commands that change runs (clear, mark and delete), and servers that no command can work with."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import psycopg2
import pytest
import redis
from support.data import attempt
from support.run_actions import end, running
from support.scenario import Scenario, dag
from support.servers import PostgresServer, RedisServer, running_redis

from paceline.states import TaskState
from scheduler.cli import paceline
from scheduler.embedded.stack import PACELINE
from scheduler.messaging.wakeups import Wakeups
from scheduler.settings import Settings

from .conftest import Cli


@pytest.fixture
def failed(scenario: Scenario) -> int:
    """A run of `pair` whose first task failed."""
    run = scenario.trigger("pair", run_id="one")
    scenario.run_to_end(outcome=lambda _: TaskState.FAILED)
    return run


def wakeups_of(scenario: Scenario) -> set[str]:
    wakeups = Wakeups(scenario.settings)
    tokens = wakeups.wait(1)
    wakeups.close()
    assert tokens is not None
    return tokens


def becomes(answer: dict[str, list[dict[str, object]]]) -> list[tuple[object, ...]]:
    return [
        (change["run_id"], change["task_id"], change["map_index"], change["state"], change["becomes"])
        for change in answer["changes"]
    ]


BOTH = [("one", "first", -1, "failed", "none"), ("one", "second", -1, "upstream_failed", "none")]


def test_a_run_is_cleared_after_a_dry_run_that_lists_the_same(cli: Cli, scenario: Scenario, failed: int) -> None:
    wakeups_of(scenario)
    planned = cli.json("runs", "clear", "pair", "one", "--only-failed", "--dry-run")
    assert (becomes(planned), planned["dry_run"]) == (BOTH, True)
    assert scenario.run_state(failed) == "failed"

    assert becomes(cli.json("runs", "clear", "pair", "one", "--only-failed", "--yes")) == BOTH

    assert wakeups_of(scenario) >= {f"run:{failed}", "queue"}
    scenario.run_to_end()
    assert scenario.run_state(failed) == "success"
    again = cli("runs", "clear", "pair", "one", "--only-failed")
    assert (again.exit_code, again.stderr) == (0, "Nothing to change.\n")


def test_people_read_a_table_and_a_sentence(cli: Cli, scenario: Scenario, failed: int) -> None:
    done = cli("tasks", "clear", "pair", "one", "first", "--downstream", "--dry-run")
    assert done.stdout.splitlines()[-1] == "2 task instances would be cleared."

    done = cli("tasks", "clear", "pair", "one", "second", "--yes")
    assert done.stdout.splitlines()[-1] == "1 task instance cleared."
    assert "upstream_failed" in done.stdout


def test_tasks_are_cleared_with_their_neighbors(cli: Cli, scenario: Scenario, failed: int) -> None:
    assert becomes(cli.json("tasks", "clear", "pair", "one", "second", "--dry-run")) == BOTH[1:]
    assert becomes(cli.json("tasks", "clear", "pair", "one", "second", "--upstream", "--dry-run")) == BOTH
    assert becomes(cli.json("tasks", "clear", "pair", "one", "first", "second", "--only-running", "--dry-run")) == []


def test_many_runs_are_cleared_by_task_date_and_state(cli: Cli, scenario: Scenario) -> None:
    for day in (1, 2, 3):
        cli("dags", "trigger", "pair", "--run-id", f"day{day}", "--logical-date", f"2025-01-0{day}T00:00+00:00")
    scenario.run_to_end()

    def chosen(*options: str) -> str:
        changes = cli.json("dags", "clear", "pair", "--dry-run", *options)["changes"]
        return " ".join(f"{change['run_id'][3:]}{change['task_id'][0]}" for change in changes)

    assert chosen() == "1f 1s 2f 2s 3f 3s"
    assert chosen("--from", "2025-01-02T00:00+00:00", "--task-regex", "^sec") == "2s 3s"
    assert chosen("--to", "2025-01-01T12:00+00:00") == "1f 1s"
    assert chosen("--state", "failed") == ""
    assert chosen("--state", "failed", "--state", "success", "--task-regex", "first") == "1f 2f 3f"


def test_a_running_task_is_marked_and_stopped(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    claim = running(scenario)

    answer = cli.json("tasks", "mark", "pair", "one", "first", "skipped")

    assert becomes(answer) == [("one", "first", -1, "running", "shutdown")]
    end(scenario, claim)
    assert scenario.states()["first"] == "skipped"


def test_a_run_is_marked(cli: Cli, scenario: Scenario) -> None:
    run = scenario.trigger("pair", run_id="one")
    scenario.turn()
    wakeups_of(scenario)

    planned = cli.json("runs", "mark", "pair", "one", "failed", "--dry-run")
    assert scenario.run_state(run) == "running"
    assert becomes(planned) == [("one", "first", -1, "queued", "skipped"), ("one", "second", -1, None, "skipped")]

    done = cli("runs", "mark", "pair", "one", "failed")
    assert done.stdout.splitlines()[-1] == "Run one of DAG pair is failed."
    assert scenario.run_state(run) == "failed"
    assert f"run:{run}" in wakeups_of(scenario)


def test_runs_and_dags_are_deleted(cli: Cli, scenario: Scenario) -> None:
    keys = {run_id: scenario.trigger("pair", run_id=run_id) for run_id in ("one", "two")}
    one, two = (attempt(scenario.settings, "pair", run_id, key) for run_id, key in keys.items())
    running(scenario)

    refused = cli("dags", "delete", "pair", "--yes")
    assert (refused.exit_code, "cannot be deleted while 1 task instance" in refused.stderr) == (1, True)
    scenario.sql("update task_instance set state = null where state = 'running'")

    assert cli.json("runs", "delete", "pair", "one", "--yes") == {"dag_id": "pair", "run_id": "one", "deleted": True}
    assert (one.exists(), two.exists()) == (False, True)
    assert cli.json("dags", "delete", "pair", "--yes") == {"dag_id": "pair", "runs": 1, "file": None}
    assert not two.exists()
    assert cli("dags", "show", "pair").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("runs", "clear", "pair", "won"), 3, "did you mean 'one'"),
        (("tasks", "clear", "pair", "one", "frist"), 3, "did you mean 'first'"),
        (("tasks", "mark", "pair", "one", "nothing", "success"), 3, "`paceline tasks list pair` lists all"),
        (("tasks", "mark", "pair", "one", "first", "running"), 2, "is not one of"),
        (("runs", "mark", "pair", "one", "queued"), 2, "is not one of"),
        (("runs", "clear", "pair", "one", "--only-failed", "--only-running"), 2, "Choose --only-failed or --only-running"),
        (("dags", "clear", "pear"), 3, "did you mean 'pair'"),
        (("dags", "clear", "pair", "--task-regex", "("), 1, "not a regular expression"),
        (("dags", "delete", "pear"), 3, "did you mean 'pair'"),
        (("runs", "delete", "pair", "won"), 3, "did you mean 'one'"),
    ],
)
def test_an_impossible_action_is_one_sentence(
    cli: Cli, scenario: Scenario, failed: int, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    done = cli(*arguments)

    assert done.exit_code == exit_code, done.output
    assert message in done.stderr


def on_terminal(cli: Cli, *arguments: str, typed: bytes) -> "subprocess.CompletedProcess[str]":
    """Run `paceline` with a terminal as its input, and type an answer."""
    command = [sys.executable, "-c", "from scheduler.cli import main; main()", *arguments]
    master, terminal = os.openpty()
    try:
        os.write(master, typed)
        return subprocess.run(
            command, stdin=terminal, env={**os.environ, **cli.env}, capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        os.close(master)
        os.close(terminal)


def test_a_person_is_asked_first(cli: Cli, scenario: Scenario, failed: int) -> None:
    done = on_terminal(cli, "runs", "clear", "pair", "one", typed=b"n\n")

    assert done.returncode == 1
    assert "Clear 2 task instances?" in done.stderr
    assert "Nothing was changed." in done.stderr
    assert scenario.run_state(failed) == "failed"
    assert cli("runs", "clear", "pair", "one", "--yes").exit_code == 0
    assert json.loads(cli("runs", "delete", "pair", "one", "--yes", "--json").stdout)["deleted"]


def test_runs_without_the_task_are_passed_over_and_counted(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="old", logical_date=datetime(2026, 1, 1, tzinfo=UTC))
    scenario.triggered(
        dag("pair", {"first": [], "second": ["first"], "third": []}), run_id="new", logical_date=datetime(2026, 1, 2, tzinfo=UTC)
    )
    new = [("new", "third", -1, None, "skipped")]

    assert becomes(cli.json("tasks", "mark", "pair", "new", "third", "skipped", "--past", "--dry-run")) == new
    done = cli("tasks", "mark", "pair", "new", "third", "skipped", "--past", "--yes")

    assert (done.exit_code, done.stderr) == (0, "1 run without the task or map index passed over.\n")
    again = cli.json("dags", "clear", "pair", "--task-regex", "third", "--yes")
    assert becomes(again) == [("new", "third", -1, "skipped", "none")]
    refused = cli("tasks", "mark", "pair", "new", "third", "skipped", "--past", "--map-index", "4", "--yes")
    assert refused.exit_code == 3 and "no instance of map index 4" in refused.stderr


def test_a_marked_run_names_the_teardowns_that_still_run(cli: Cli, scenario: Scenario) -> None:
    down = {"is_teardown": True, "trigger_rule": "all_done_setup_success", "setups": ("up",), "scope": ("work",)}
    options = {"up": {"is_setup": True}, "work": {"setups": ("up",)}, "down": down}
    run = scenario.triggered(dag("cluster", {"up": [], "work": ["up"], "down": ["work"]}, options=options), run_id="one")
    assert end(scenario, running(scenario))
    work = running(scenario)

    assert cli.json("runs", "mark", "cluster", "one", "failed", "--dry-run")["teardowns"] == ["down"]
    marked = cli("runs", "mark", "cluster", "one", "failed")

    assert marked.stdout.splitlines()[-1] == "Run one of DAG cluster becomes failed once its teardowns have ended: down."
    assert cli.json("runs", "show", "cluster", "one")["requested_state"] == "failed"
    assert "It ends as failed once its teardowns have ended." in cli("runs", "why", "cluster", "one").stdout
    end(scenario, work)
    scenario.run_to_end()
    assert (scenario.run_state(run), scenario.states(run)["down"]) == ("failed", "success")


#: Words that name a command which destroys something.
DESTRUCTIVE = {"delete", "clear", "clean", "cancel", "downgrade", "remove", "purge", "drop"}
#: Each such command with arguments that it accepts.
REFUSED: dict[str, tuple[str, ...]] = {
    "dags clear": ("pair",),
    "dags delete": ("pair",),
    "runs clear": ("pair", "one"),
    "runs delete": ("pair", "one"),
    "tasks clear": ("pair", "one", "first"),
    "backfills cancel": ("1",),
    "pools delete": ("default_pool",),
    "variables delete": ("v",),
    "connections delete": ("c",),
    "users delete": ("ada",),
    "db clean": ("--before", "2099-01-01"),
    "db downgrade": (),
}
#: Options that make another command destructive.
BY_OPTION = {
    "users token": [("ada", "--revoke")],
}


def leaf_commands(group: click.Group, *words: str) -> dict[str, click.Command]:
    """Each command without subcommands, by its words."""
    context = click.Context(group)
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found |= leaf_commands(command, *words, name) if isinstance(command, click.Group) else {" ".join((*words, name)): command}
    return found


def test_every_command_that_destroys_is_known_to_the_test_of_refusals() -> None:
    named = {words for words in leaf_commands(paceline) if DESTRUCTIVE & set(words.split())}
    asking = {words for words, command in leaf_commands(paceline).items() if "yes" in {p.name for p in command.params}}

    assert named == set(REFUSED)
    # A mark can be undone, so it asks on a terminal only. A reproduction asks nothing: it refuses tasks with known effects.
    assert asking == {*REFUSED, *BY_OPTION, "tasks mark", "runs reproduce"}


def test_without_a_terminal_nothing_is_destroyed_without_yes(cli: Cli, scenario: Scenario, failed: int) -> None:
    scenario.add(dag("daily", {"a": []}, schedule={"kind": "cron", "expression": "@daily", "timezone": "UTC"}))
    assert cli("backfills", "create", "daily", "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
    by_option = [(words, arguments) for words, some in BY_OPTION.items() for arguments in some]

    def state() -> list[object]:
        reads = ("runs list", "tasks list pair one", "backfills list", "pools list")
        return [cli.json(*words.split()) for words in reads]

    before = state()
    for words, arguments in [*REFUSED.items(), *by_option]:
        options = {option for parameter in leaf_commands(paceline)[words].params for option in parameter.opts}
        for extra in [(), *([("--json",)] if "--json" in options else [])]:
            done = cli(*words.split(), *arguments, *extra)
            assert (done.exit_code, done.stdout) == (2, ""), (words, done.output)
            assert done.stderr.endswith("add --yes.\n")
    assert state() == before


COMMANDS = (["scheduler"], ["worker"], ["waiter"], ["dags", "list"], ["variables", "set", "a", "1"], ["doctor"])


@pytest.fixture
def stranger(postgres_server: PostgresServer) -> Iterator[str]:
    postgres_server.execute("create role stranger login")
    yield "stranger"
    postgres_server.execute("drop role stranger")


def output_of(environment: dict[str, str], command: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        [*PACELINE, *command], env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_missing_grants_are_one_sentence(
    command: list[str], stranger: str, settings: Settings, environment: dict[str, str]
) -> None:
    url = settings.database_url.replace("postgres@", f"{stranger}@")
    code, text = output_of(environment | {"PACELINE_DATABASE_URL": url, "PACELINE_WORKER_DATABASE_URL": url}, command)

    assert code == (1 if command == ["doctor"] else 4), text
    assert "The database role lacks a right: permission denied for table paceline_schema" in text
    assert "Run `paceline db migrate` as the owner of the tables to grant" in text
    assert "Traceback" not in text and "psycopg2.errors" not in text


@pytest.mark.long
@pytest.mark.parametrize("command", [["scheduler"], ["worker"], ["waiter"], ["web"], ["standalone"]], ids=" ".join)
def test_the_database_of_an_earlier_checkout_is_one_sentence(
    command: list[str], database_url: str, environment: dict[str, str]
) -> None:
    with contextlib.closing(psycopg2.connect(database_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("alter table paceline_schema drop column baseline; update paceline_schema set version_num = '0028'")

    code, text = output_of(environment, command)

    assert code == 4, text
    assert "The database has the schema 0028 of a Paceline before 0.2.0, which cannot be upgraded: back up" in text
    assert "Traceback" not in text


@pytest.mark.long
@pytest.mark.parametrize("command", [["scheduler"], ["worker"], ["waiter"], ["doctor"]], ids=" ".join)
def test_a_redis_that_requires_a_password_is_one_sentence(command: list[str], closed: str, environment: dict[str, str]) -> None:
    code, text = output_of(environment | {"PACELINE_BROKER_URL": closed}, command)

    assert code == (1 if command == ["doctor"] else 4), text
    assert "Redis rejects the connection" in text
    assert "orrect PACELINE_BROKER_URL" in text
    assert "Traceback" not in text


@pytest.fixture
def closed(short_folder: Path) -> Iterator[str]:
    """The URL, without the password, of a Redis that requires one."""
    with running_redis(short_folder) as server:
        yield _close(server)


def _close(server: RedisServer) -> str:
    with redis.Redis(unix_socket_path=str(server.embedded.socket)) as client:
        client.execute_command("CONFIG", "SET", "requirepass", "secret")
    return f"redis+socket://{server.embedded.socket}?virtual_host=0"
