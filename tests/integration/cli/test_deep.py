"""`paceline doctor --deep`: names broken rows, exits 1, and repairs on request."""

import json

from support.scenario import Scenario

from .conftest import Cli


def test_what_is_broken_is_named_then_repaired(cli: Cli, scenario: Scenario) -> None:
    assert cli("doctor", "--deep").exit_code == 0
    scenario.trigger("pair", run_id="one")
    scenario.turn()
    (message,) = scenario.messages()
    scenario.claim(message)
    scenario.sql("update task_instance set worker = 'nobody', started_at = now() - interval '1 hour' where state = 'running'")

    shown = cli("doctor", "--deep")
    assert shown.exit_code == 1
    assert "running with worker nobody" in shown.stdout
    assert "--repair" in shown.stderr
    report = json.loads(cli("doctor", "--deep", "--json").stdout)
    (broken,) = report["broken"]
    named = (broken["invariant"], broken["dag_id"], broken["run_id"], broken["task_id"], broken["map_index"])
    assert named == ("dead worker", "pair", "one", "first", -1)
    assert broken["what"] == "running with worker nobody, which is dead or was never there"
    assert broken["since"] is not None

    done = json.loads(cli("doctor", "--deep", "--repair", "--json").stdout)
    assert (done["ok"], done["broken"], [one["task_id"] for one in done["repaired"]]) == (True, [], ["first"])
    assert cli("doctor", "--deep").exit_code == 0
    scenario.run_to_end()


def test_a_repair_alone_is_wrong_usage(cli: Cli) -> None:
    done = cli("doctor", "--repair")

    assert done.exit_code == 2
    assert "--repair goes with --deep" in done.stderr
