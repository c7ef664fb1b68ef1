"""`paceline doctor --deep`: names broken rows and exits 1."""

import json

from support.repair import repair
from support.scenario import Scenario

from scheduler.store.upkeep import invariants
from scheduler.store.upkeep.invariants import Tools

from .conftest import Cli


def test_broken_rows_are_named_until_they_are_repaired(cli: Cli, scenario: Scenario) -> None:
    assert cli("doctor", "--deep").exit_code == 0
    scenario.trigger("pair", run_id="one")
    scenario.turn()
    (message,) = scenario.messages()
    scenario.claim(message)
    scenario.sql("update task_instance set worker = 'nobody', started_at = now() - interval '1 hour' where state = 'running'")

    shown = cli("doctor", "--deep")
    assert shown.exit_code == 1
    assert "running with worker nobody" in shown.stdout
    assert "clear or mark" in shown.stderr
    report = json.loads(cli("doctor", "--deep", "--json").stdout)
    (broken,) = report["broken"]
    named = (broken["invariant"], broken["dag_id"], broken["run_id"], broken["task_id"], broken["map_index"])
    assert named == ("dead worker", "pair", "one", "first", -1)
    assert broken["what"] == "running with worker nobody, which is lost or never existed"
    assert broken["since"] is not None

    tools = Tools(scenario.engine, scenario.settings, scenario.broker)
    assert repair(tools, invariants.find(tools)) == []
    assert json.loads(cli("doctor", "--deep", "--json").stdout) == {"ok": True, "broken": []}
    assert cli("doctor", "--deep").exit_code == 0
    scenario.run_to_end()
