"""Schedules and assets on the command line."""

from datetime import UTC, datetime

from support.scenario import Scenario, chain

from paceline import PartitionedAssetTimetable
from paceline.authoring import timetable
from paceline.authoring.asset import Asset

from .conftest import Cli

FLIGHTS, WEATHER = Asset("flights", "s3://lake/flights"), Asset("weather", "s3://lake/weather")


def test_the_next_runs_of_a_schedule(cli: Cli, scenario: Scenario) -> None:
    table = timetable.CronInterval("0 0 1 1 *")
    start = datetime(2040, 1, 1, tzinfo=UTC)
    scenario.add(chain("yearly", 1, schedule=table.to_spec(), start_date=start.isoformat(), end_date="2042-06-01T00:00:00+00:00"))

    before = cli.json("dags", "next", "yearly", "--count", "5")
    scenario.turn()

    assert [row["logical_date"][:10] for row in before] == ["2040-01-01", "2041-01-01", "2042-01-01"]
    assert [row["run_after"][:10] for row in before] == ["2041-01-01", "2042-01-01", "2043-01-01"]
    assert cli.json("dags", "next", "yearly", "--count", "5") == before
    assert len(cli.json("dags", "next", "yearly")) == 1


def test_a_schedule_that_makes_no_run_is_reported(cli: Cli, scenario: Scenario) -> None:
    assert cli.json("dags", "next", "pair") == []
    assert "creates no further runs" in cli("dags", "next", "pair").stderr
    assert cli("dags", "next", "nobody").exit_code == 3


def test_a_schedule_of_assets_is_shown_and_updated(cli: Cli, scenario: Scenario) -> None:
    scenario.add(chain("user", 1, schedule=timetable.WhenUpdated(FLIGHTS & WEATHER).to_spec()))
    assert cli.json("dags", "show", "user")["schedule"] == "on flights and weather"
    assert {row["dag_id"]: row["schedule"] for row in cli.json("dags", "list")}["user"] == "on flights and weather"

    event = cli.json("assets", "update", "s3://lake/flights", "--extra", '{"rows": 7}')
    assert (event["uri"], event["extra"], event["created_by"]) == ("s3://lake/flights", {"rows": 7}, "cli")
    assert "is updated" in cli("assets", "update", "weather").stdout
    scenario.run_to_end()

    assert [run["run_type"] for run in cli.json("runs", "list", "--dag", "user")] == ["asset_triggered"]
    listed = cli.json("assets", "list")
    assert [(row["name"], row["waited_for_by"], row["updated_at"] is not None) for row in listed] == [
        ("flights", ["user"], True),
        ("weather", ["user"], True),
    ]
    assert "s3://lake/flights" in cli("assets", "list").stdout


def test_a_partition_is_given_to_a_run_and_to_an_update(cli: Cli, scenario: Scenario) -> None:
    scenario.add(chain("user", 1, schedule=PartitionedAssetTimetable(assets=FLIGHTS).to_spec()))

    assert cli("dags", "trigger", "pair", "--run-id", "mine", "--partition", "eu").exit_code == 0
    assert cli("assets", "update", "flights", "--partition", "us").exit_code == 0
    scenario.run_to_end()

    assert scenario.rows("select dag_id, partition_key from dag_run order by id") == [("pair", "eu"), ("user", "us")]
    refused = cli("dags", "trigger", "pair", "--partition", "x" * 251)
    assert refused.exit_code != 0 and "partition key must have 1 to 250" in refused.stderr


def test_an_asset_that_nothing_names_is_refused(cli: Cli, scenario: Scenario) -> None:
    done = cli("assets", "update", "s3://nowhere")

    assert done.exit_code == 3
    assert "No DAG uses the asset 's3://nowhere'; `paceline assets list` lists all." in done.stderr


def test_an_unreadable_schedule_hides_no_other_dag(cli: Cli, scenario: Scenario) -> None:
    scenario.add(chain("odd", 1, schedule={"kind": "from the future"}))

    listed = {row["dag_id"]: row["schedule"] for row in cli.json("dags", "list")}

    assert listed == {"odd": "not understood: {'kind': 'from the future'}", "pair": "never, only by hand"}
