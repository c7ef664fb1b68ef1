"""The commands that write: trigger and wait, pause, pools, schema, backfills."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, get_args

import pytest
from sqlalchemy.exc import OperationalError
from support.scenario import Scenario, dag
from support.waiting import eventually

from paceline.exceptions import UnreachableError
from paceline.states import TaskState
from scheduler.cli import lazy
from scheduler.messaging.wakeups import AFTER, KEY, QUEUE_KEY, TOKEN, Action, Wakeups
from scheduler.store.db import database

from .conftest import Cli


def test_trigger_makes_a_run_and_sends_its_first_task(cli: Cli, scenario: Scenario) -> None:
    run = cli.json(
        "dags", "trigger", "pair", "--run-id", "mine", "--conf", '{"a": "ü"}', "--logical-date", "2025-01-01T00:00+02:00"
    )

    assert (run["run_id"], run["state"], run["conf"]) == ("mine", "running", {"a": "ü"})
    assert run["logical_date"] == "2024-12-31T22:00:00+00:00"
    assert len(scenario.messages()) == 1
    assert Wakeups(scenario.settings).wait(0.1) == set(), "no service has to look"


def test_trigger_of_a_run_that_cannot_begin_wakes_a_scheduler(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair")

    run = cli.json("dags", "trigger", "pair", "--run-id", "mine")

    assert run["state"] == "queued"
    assert Wakeups(scenario.settings).wait(1) == {f"run:{run['id']}"}, "no other service has to look"


def test_trigger_without_a_run_id_makes_one(cli: Cli, scenario: Scenario) -> None:
    assert cli.json("dags", "trigger", "pair")["run_id"].startswith("manual__")


def test_triggering_twice_is_exit_code_1(cli: Cli, scenario: Scenario) -> None:
    assert cli("dags", "trigger", "pair", "--run-id", "one").exit_code == 0

    again = cli("dags", "trigger", "pair", "--run-id", "one")

    assert again.exit_code == 1
    assert "already has a run" in again.stderr


def test_trigger_works_without_a_broker(cli: Cli, scenario: Scenario) -> None:
    done = cli("dags", "trigger", "pair", "--run-id", "one", PACELINE_BROKER_URL="redis://127.0.0.1:1/0")

    assert done.exit_code == 0
    assert [run["run_id"] for run in cli.json("runs", "list")] == ["one"]


def test_trigger_prints_the_conditions_that_the_run_waits_for(cli: Cli, scenario: Scenario) -> None:
    cli("dags", "pause", "pair")
    scenario.sql("update process set stopped_at = now() where kind = 'scheduler'")

    done = cli("dags", "trigger", "pair")

    assert "DAG pair is paused" in done.stderr
    assert "No scheduler is alive" in done.stderr


Background = Callable[[Callable[[], object]], None]


def carry_out(scenario: Scenario, outcome: Callable[[Any], TaskState] = lambda _: TaskState.SUCCESS) -> Callable[[], None]:
    """Waits for a run to appear, then carries it to its end."""

    def work() -> None:
        eventually(lambda: scenario.rows("select 1 from dag_run"))
        scenario.run_to_end(outcome=outcome)

    return work


def test_waiting_for_a_success_is_exit_code_0_with_a_line_for_each_task(
    cli: Cli, scenario: Scenario, background: Background
) -> None:
    background(carry_out(scenario))

    done = cli("dags", "trigger", "pair", "--run-id", "one", "--wait")

    assert done.exit_code == 0, done.output
    assert "first: success" in done.stdout
    assert "second: success" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Run one of pair: success after ")
    assert done.stdout.splitlines()[-1].endswith("(2 success).")


def test_waiting_for_a_failure_is_exit_code_1_and_json_is_all_on_stdout(
    cli: Cli, scenario: Scenario, background: Background
) -> None:
    background(carry_out(scenario, lambda claim: TaskState.FAILED))

    done = cli("dags", "trigger", "pair", "--run-id", "one", "--wait", "--json")

    assert done.exit_code == 1
    run = json.loads(done.stdout)
    assert (run["state"], [task["state"] for task in run["tasks"]]) == ("failed", ["failed", "upstream_failed"])
    assert "first: failed" in done.stderr


def test_waiting_too_long_is_exit_code_5(cli: Cli, scenario: Scenario) -> None:
    triggered = cli("dags", "trigger", "pair", "--run-id", "one", "--wait", "--timeout", "0.1")
    watched = cli("runs", "watch", "pair", "one", "--timeout", "0")

    assert (triggered.exit_code, watched.exit_code) == (5, 5)
    assert "`paceline runs watch pair 'one'` shows it" in triggered.stderr


def test_watching_a_failed_run_is_exit_code_1(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end(outcome=lambda claim: TaskState.FAILED)

    done = cli("runs", "watch", "pair", "one")

    assert done.exit_code == 1
    assert "first: failed" in done.stdout


def test_pause_and_unpause(cli: Cli, scenario: Scenario) -> None:
    assert cli("dags", "pause", "pair").stdout == "DAG pair is paused.\n"
    assert cli("dags", "pause", "pair").stdout == "DAG pair was paused already.\n"
    assert cli.json("dags", "show", "pair")["is_paused"] is True
    assert cli("dags", "unpause", "pair").stdout == "DAG pair is unpaused.\n"
    assert cli.json("dags", "show", "pair")["is_paused"] is False


def test_pause_works_before_the_scheduler_has_planned_the_dag(cli: Cli, scenario: Scenario) -> None:
    scenario.sql("delete from dag_schedule")

    assert cli("dags", "pause", "pair").exit_code == 0
    assert cli.json("dags", "show", "pair")["is_paused"] is True


def test_reparse_makes_files_due(cli: Cli, scenario: Scenario) -> None:
    later = "insert into dag_file (path, modified_at, next_parse_at) values (%s, now(), now() + interval '1 hour')"
    scenario.sql(later, "pair.py")
    scenario.sql(later, "other.py")
    due = "select path from dag_file where next_parse_at <= now() order by path"

    cli("dags", "reparse", "pair")
    assert scenario.rows(due) == [("pair.py",)]

    cli("dags", "reparse")
    assert scenario.rows(due) == [("other.py",), ("pair.py",)]


def test_pools_are_set_changed_listed_and_deleted(cli: Cli, scenario: Scenario) -> None:
    created = cli.json("pools", "set", "narrow", "3", "--description", "few", "--queue", "q")
    changed = cli.json("pools", "set", "narrow", "5")
    wide = cli.json("pools", "set", "wide", "-1", "--include-deferred")

    assert (created["slots"], created["description"], created["queue"], created["free_slots"]) == (3, "few", "q", 3)
    assert (changed["slots"], changed["description"], changed["queue"]) == (5, "few", "q")
    assert (wide["slots"], wide["free_slots"], wide["include_deferred"]) == (-1, None, True)
    assert [pool["name"] for pool in cli.json("pools", "list")] == ["default_pool", "narrow", "wide"]
    assert cli("pools", "delete", "narrow", "--yes").exit_code == 0
    assert [pool["name"] for pool in cli.json("pools", "list")] == ["default_pool", "wide"]


def test_a_pool_shows_its_use_and_cannot_be_deleted_then(cli: Cli, scenario: Scenario) -> None:
    scenario.pool("narrow", 1)
    scenario.start(dag("wide", {"a": [], "b": []}, task={"pool": "narrow"}), run_id="one")
    scenario.turn()

    (pool,) = [pool for pool in cli.json("pools", "list") if pool["name"] == "narrow"]

    assert (pool["used_slots"], pool["free_slots"], pool["waiting"]) == (1, 0, 1)
    assert cli("pools", "delete", "narrow", "--yes").exit_code == 1
    assert cli("pools", "delete", "default_pool", "--yes").exit_code == 1


def test_an_empty_database_names_the_command_and_migrate_repairs_it(cli: Cli, empty_database_url: str) -> None:
    cli.env["PACELINE_DATABASE_URL"] = empty_database_url

    before = cli("dags", "list")
    migrated = cli("db", "migrate")

    assert before.exit_code == 4
    assert "run `paceline db migrate`" in before.stderr
    assert (migrated.exit_code, cli("db", "migrate").exit_code, cli("db", "check").exit_code) == (0, 0, 0)
    assert cli.json("pools", "list")[0]["slots"] == 128


def test_a_check_waits_in_one_process_for_the_schema(cli: Cli, empty_database_url: str) -> None:
    cli.env["PACELINE_DATABASE_URL"] = empty_database_url
    command = [sys.executable, "-m", "scheduler.cli", "db", "check", "--wait", "60"]
    with subprocess.Popen(command, env=os.environ | cli.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().endswith("run `paceline db migrate`. Waiting for it.\n")

        assert cli("db", "migrate").exit_code == 0

        assert (waiting.wait(60), waiting.stderr.read()) == (0, "")


@pytest.mark.parametrize("command", ["check", "migrate"])
def test_the_wait_for_a_database_ends_at_its_deadline(cli: Cli, command: str) -> None:
    started = time.monotonic()

    done = cli("db", command, "--wait", "1.5", PACELINE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")

    assert done.exit_code == 4
    assert time.monotonic() - started >= 1.5
    assert [line.endswith("Waiting for it.") for line in done.stderr.splitlines()] == [True, False]


def test_a_newer_schema_is_refused_by_every_command(cli: Cli, scenario: Scenario) -> None:
    scenario.sql("update paceline_schema set version_num = '9999', compatible_from = '9999'")

    for arguments in (["dags", "list"], ["db", "check"], ["db", "migrate"]):
        done = cli(*arguments)
        assert done.exit_code == 4
        assert "newer Paceline: upgrade" in done.stderr


def test_the_schema_of_an_earlier_checkout_is_refused_by_every_command(cli: Cli, scenario: Scenario) -> None:
    scenario.sql("alter table paceline_schema drop column baseline")
    scenario.sql("update paceline_schema set version_num = '0028'")

    for arguments in (["dags", "list"], ["db", "check"], ["db", "migrate"], ["db", "downgrade", "--yes"]):
        done = cli(*arguments)
        assert done.exit_code == 4
        assert "schema 0028 of a Paceline before 0.2.0, which cannot be upgraded: back up what you need" in done.stderr


def test_wrong_credentials_are_exit_code_4_and_are_named(cli: Cli, scenario: Scenario) -> None:
    url = database_of_nobody(cli.env["PACELINE_DATABASE_URL"])

    done = cli("dags", "list", PACELINE_DATABASE_URL=url)

    assert done.exit_code == 4
    assert done.stderr.startswith("Error: PostgreSQL rejects the connection: ")
    assert "Correct PACELINE_DATABASE_URL" in done.stderr


def database_of_nobody(url: str) -> str:
    assert "postgres@" in url
    return url.replace("postgres@", "nobody_here:secret@")


def test_a_lost_connection_is_reported_like_an_unreachable_server(cli: Cli, scenario: Scenario) -> None:
    engine = database.create(scenario.settings)
    with engine.connect() as connection:
        pid = connection.exec_driver_sql("select pg_backend_pid()").scalar_one()
        scenario.sql("select pg_terminate_backend(%s, 5000)", pid)
        with pytest.raises(OperationalError) as lost:
            connection.exec_driver_sql("select 1")
    engine.dispose()

    error = lazy.as_paceline_error(lost.value)

    assert isinstance(error, UnreachableError)
    assert "does not answer" in str(error)


HOURLY = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
DATES = ("--from", "2026-03-01T00:00:00+00:00", "--to", "2026-03-01T03:00:00+00:00")
COUNTS = ("total", "waiting", "left_out", "queued", "running", "success", "failed")


def add(scenario: Scenario) -> None:
    scenario.add(dag("hourly", {"only": []}, schedule=HOURLY))
    scenario.sql("update dag_schedule s set planned_version_id = d.version_id from dag d where d.dag_id = s.dag_id")


def test_the_life_of_a_backfill(cli: Cli, scenario: Scenario) -> None:
    add(scenario)
    created = cli.json("backfill", "create", "hourly", *DATES, "--max-active-runs", "2", "--conf", '{"day": 1}')
    assert (created["id"], created["dag_id"], created["state"], created["max_active_runs"], created["conf"]) == (
        1,
        "hourly",
        "active",
        2,
        {"day": 1},
    )
    scenario.turn()

    shown = cli.json("backfill", "show", "1")
    assert [shown[name] for name in COUNTS] == [4, 2, 0, 0, 2, 0, 0]
    assert [run["state"] for run in shown["runs"]] == ["running", "running", "waiting", "waiting"]
    assert cli("backfill", "pause", "1").stdout == "Backfill 1 is paused.\n"
    assert cli.json("backfill", "resume", "1")["state"] == "active"
    scenario.work()
    scenario.turn()
    text = cli("backfill", "show", "1").stdout
    assert "2 of 4 done (50 %)" in text
    assert "backfill__2026-03-01T00:00:00+00:00" in text
    scenario.sql("update dag_run set state = 'queued', started_at = null where state = 'running'")
    assert cli("backfill", "cancel", "1", "--yes").stdout == "Backfill 1 is canceled.\n"

    (row,) = cli.json("backfill", "list", "--dag", "hourly")
    assert (row["state"], row["left_out"] + row["failed"], row["success"]) == ("cancelled", 2, 2)
    assert "cancelled" in cli("backfill", "list").stdout
    assert cli.json("backfill", "list", "--dag", "pair") == []


def test_a_dry_run_lists_the_dates(cli: Cli, scenario: Scenario) -> None:
    add(scenario)
    rows = cli.json("backfill", "create", "hourly", *DATES, "--dry-run", "--reverse")

    assert [row["logical_date"][11:13] for row in rows] == ["03", "02", "01", "00"]
    short = cli("backfill", "create", "hourly", *DATES, "--dry-run").stdout
    assert short == "4 runs would be created, 0 left out, DAG version 1. Nothing is created yet.\n"
    assert cli("backfill", "create", "hourly", *DATES, "--dry-run", "--verbose").stdout.count("waiting") == 4
    assert cli.json("backfill", "list") == []
    assert "No backfills." in cli("backfill", "list").stderr


def test_a_paused_dag_is_reported(cli: Cli, scenario: Scenario) -> None:
    add(scenario)
    scenario.sql("update dag_schedule set is_paused = true")

    done = cli("backfill", "create", "hourly", *DATES)

    assert done.stdout == "Backfill 1 of DAG hourly: 4 runs to create.\n"
    assert "the backfill waits until `paceline dags unpause hourly`" in done.stderr


def test_refusals_are_one_sentence_with_the_right_exit_code(cli: Cli, scenario: Scenario) -> None:
    add(scenario)
    for arguments, exit_code, sentence in (
        (("create", "pair", *DATES), 2, "has no periodic schedule"),
        (("create", "hourli", *DATES), 3, "did you mean 'hourly'?"),
        (
            ("create", "hourly", *DATES, "--max-active-runs", "0"),
            2,
            "--max-active-runs must be a whole number from 1 to 10,000, not '0'.",
        ),
        (("create", "hourly", *DATES[:2], "--to", "yesterday"), 2, "'yesterday' is not an ISO 8601 time"),
        (("show", "9"), 3, "There is no backfill 9"),
        (("cancel", "9"), 3, "There is no backfill 9"),
    ):
        done = cli("backfill", *arguments)
        assert (done.exit_code, sentence in done.stderr, "Traceback" in done.stderr) == (exit_code, True, False), done.output
    assert cli("backfill", "create", "hourly", *DATES).exit_code == 0
    assert cli("backfill", "create", "hourly", *DATES).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        (("dags", "pause", "hourly"), "dag paused or unpaused"),
        (("dags", "unpause", "hourly"), "dag paused or unpaused"),
        (("backfill", "pause", "1"), "backfill changed"),
        (("backfill", "resume", "1"), "backfill changed"),
        (("backfill", "cancel", "1", "--yes"), "backfill changed"),
    ],
)
def test_a_command_wakes_the_same_services_as_the_rest_api(
    cli: Cli, scenario: Scenario, arguments: tuple[str, ...], action: Action
) -> None:
    add(scenario)
    cli("backfill", "create", "hourly", *DATES)
    scenario.broker.delete(KEY, QUEUE_KEY)

    assert cli(*arguments).exit_code == 0

    assert Wakeups(scenario.settings).wait(1) == set(AFTER[action])


def test_every_action_has_its_wakeups() -> None:
    assert set(AFTER) == set(get_args(Action))
    assert all(TOKEN.fullmatch(token.encode()) for tokens in AFTER.values() for token in tokens)
