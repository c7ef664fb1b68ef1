"""`paceline backfills`: its output and its errors."""

from typing import get_args

import pytest
from support.scenario import Scenario, dag

from scheduler.messaging.wakeups import AFTER, KEY, QUEUE_KEY, TOKEN, Action, Wakeups

from .conftest import Cli

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
