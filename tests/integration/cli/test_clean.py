"""`paceline db clean`: count first, then delete."""

from datetime import UTC, datetime, timedelta

from support.data import attempt
from support.scenario import Scenario

from scheduler.settings.log_paths import run_folder

from .conftest import Cli

SOON = (datetime.now(UTC) + timedelta(days=1)).isoformat()


def test_a_dry_run_counts_the_rows_that_the_next_run_deletes(cli: Cli, scenario: Scenario) -> None:
    keys = {run_id: scenario.trigger("pair", run_id=run_id) for run_id in ("one", "two")}
    scenario.run_to_end()
    keys["unfinished"] = scenario.trigger("pair", run_id="unfinished")
    data = {run_id: attempt(scenario.settings, "pair", run_id, key) for run_id, key in keys.items()}
    logs = run_folder(scenario.settings.logs_folder, "pair", "one")
    logs.mkdir(parents=True)

    would = cli.json("db", "clean", "--before", SOON, "--dry-run")
    assert (would["dry_run"], would["would_delete"]["runs"], would["would_delete"]["task_instances"]) == (True, 2, 4)
    assert len(scenario.rows("select 1 from dag_run")) == 3
    assert all(folder.exists() for folder in data.values())

    done = cli.json("db", "clean", "--before", SOON, "--logs", "--yes")
    assert done["deleted"] == would["would_delete"]
    assert scenario.rows("select run_id from dag_run") == [("unfinished",)]
    assert not logs.exists()
    assert [run_id for run_id, folder in data.items() if folder.exists()] == ["unfinished"]

    assert not any(cli.json("db", "clean", "--before", SOON, "--yes")["deleted"].values())


def test_the_output_for_people_lists_the_deleted_rows(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end()

    done = cli("db", "clean", "--before", SOON, "--yes")

    assert done.exit_code == 0, done.output
    assert "task instances  2" in done.stdout
    assert "Deleted." in done.stderr


def test_a_moment_that_is_none_is_one_sentence(cli: Cli) -> None:
    done = cli("db", "clean", "--before", "yesterday")

    assert done.exit_code == 2
    assert "not an ISO 8601 time" in done.stderr
