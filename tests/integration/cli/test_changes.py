"""The commands that write: trigger and wait, pause, pools, schema."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from support.scenario import Scenario, dag
from support.waiting import eventually

from paceline.exceptions import UnreachableError
from paceline.states import TaskState
from scheduler.cli import lazy
from scheduler.messaging.wakeups import Wakeups
from scheduler.store.db import database

from .conftest import Cli


def test_trigger_makes_a_run_and_wakes_a_scheduler(cli: Cli, scenario: Scenario) -> None:
    run = cli.json(
        "dags", "trigger", "pair", "--run-id", "mine", "--conf", '{"a": "ü"}', "--logical-date", "2025-01-01T00:00+02:00"
    )

    assert (run["run_id"], run["state"], run["conf"]) == ("mine", "queued", {"a": "ü"})
    assert run["logical_date"] == "2024-12-31T22:00:00+00:00"
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
