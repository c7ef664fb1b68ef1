"""What a newcomer meets on the first day: typos, a broken file, and answers that must agree."""

import json
import os
from pathlib import Path

import pytest
from support.scenario import Scenario, dag

from paceline.authoring.connection import Connection
from scheduler.embedded import stack
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher

from .conftest import Cli

PARAMS = {
    "boom": {"value": False, "schema": {"type": "boolean"}, "description": None},
    "day": {"value": 1, "schema": {}, "description": None},
}


@pytest.fixture
def asked(scenario: Scenario) -> Scenario:
    scenario.add(dag("asked", {"a": []}, params=PARAMS))
    return scenario


def test_a_dag_whose_file_is_broken_is_not_triggered_without_force(cli: Cli, scenario: Scenario) -> None:
    scenario.sql("insert into import_error (file, line, message) values ('pair.py', 3, 'SyntaxError: invalid syntax')")

    refused = cli("dags", "trigger", "pair", "--run-id", "r")
    assert (refused.exit_code, "(pair.py:3: SyntaxError: invalid syntax)" in refused.stderr) == (1, True)
    assert cli("dags", "errors").exit_code == cli("dags", "errors", "--json").exit_code == 1
    assert cli("dags", "trigger", "pair", "--run-id", "r", "--force").exit_code == 0
    scenario.sql("delete from import_error")
    assert cli("dags", "errors").exit_code == cli("dags", "errors", "--json").exit_code == 0


def test_a_misspelt_key_of_the_conf_is_rejected_where_the_dag_has_params(cli: Cli, asked: Scenario) -> None:
    refused = cli("dags", "trigger", "asked", "--conf", '{"booom": true}')

    assert (refused.exit_code, refused.stderr) == (2, "Error: DAG 'asked' has no param 'booom'; did you mean 'boom'?\n")
    assert cli("dags", "trigger", "pair", "--conf", '{"anything": true}').exit_code == 0


def test_params_are_given_by_name_and_have_their_type(cli: Cli, asked: Scenario) -> None:
    run = cli.json("dags", "trigger", "asked", "-p", "boom=true", "-p", "day=2", "--date", "2026-01-31T00:00:00+00:00")

    assert run["conf"] == {"boom": True, "day": 2}
    assert run["logical_date"].startswith("2026-01-31T00:00:00")
    assert cli("dags", "trigger", "asked", "-p", "boom=perhaps").exit_code == 2


def test_names_that_are_probably_typos_are_warnings(cli: Cli, scenario: Scenario) -> None:
    scenario.add(dag("typo", {"a": []}, task={"pool": "nowhere", "queue": "gppu"}))
    warnings = ("The pool 'nowhere' does not exist", "No worker listens to the queue 'gppu'")

    for words in (("dags", "errors"), ("dags", "list")):
        shown = cli(*words)
        assert shown.exit_code == 0
        assert all(warning in shown.stderr for warning in warnings)
    assert "gppu" in json.dumps(cli.doctor())


def test_a_stored_variable_that_a_file_ignores_is_a_warning(cli: Cli, scenario: Scenario) -> None:
    scenario.add(dag("reads", {"a": []}, defaulted_variables=("region", "unset")))
    assert "region" not in cli("dags", "errors").stderr
    scenario.sql("insert into variable (key, value) values ('region', 'token')")

    shown = cli("dags", "errors")

    assert shown.exit_code == 0
    assert "'region' is stored, but the file takes its default" in shown.stderr and "set PACELINE_VAR_REGION" in shown.stderr
    assert "unset" not in shown.stderr


def test_the_list_of_a_run_and_why_give_the_same_reasons(cli: Cli, scenario: Scenario) -> None:
    scenario.start(dag("typo", {"a": []}, task={"pool": "nowhere", "queue": "gppu"}), run_id="r")
    scenario.turn()

    why = " ".join(cli.json("tasks", "why", "typo", "r", "a")["waiting_for"])

    assert "There is no pool 'nowhere'" in why
    assert [cli.json("runs", "show", "typo", "r")["tasks"][0]["reason"], cli.json("tasks", "list", "typo", "r")[0]["reason"]] == [
        why
    ] * 2


def test_a_test_run_reads_a_stored_connection(cli: Cli, scenario: Scenario) -> None:
    cipher = Cipher.of(scenario.settings, make=True)
    transact(scenario.engine, connections.add, [Connection.from_uri("wh", "postgres://a:b@stored/x")], cipher)
    folder = scenario.settings.dags_folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reads.py").write_text(
        "from paceline import Connection, DAG, task\n"
        "with DAG('reads', schedule=None):\n    @task\n    def host(name): return Connection.get(name).host\n"
        "    host.override(task_id='known')('wh')\n    host.override(task_id='unknown')('no')\n"
    )

    done = cli("dags", "test", "reads", "--json")
    tasks = {task["task_id"]: task for task in json.loads(done.stdout)["tasks"]}

    assert tasks["known"]["result"] == "stored"
    assert "set PACELINE_CONN_NO" in tasks["unknown"]["reason"]


def test_the_output_of_callbacks_is_printed(cli: Cli, scenario: Scenario) -> None:
    from scheduler.settings import log_paths

    scenario.trigger("pair", run_id="r")
    none = cli("tasks", "logs", "pair", "r", "first", "--callbacks")
    path = log_paths.callbacks_path(scenario.settings.logs_folder, dag_id="pair", run_id="r", task_id="first")
    os.close(log_paths.append(path))
    Path(path).write_text("called\n", encoding="utf-8")

    assert (none.exit_code, cli("tasks", "logs", "pair", "r", "first", "--callbacks").stdout) == (3, "called\n")


def test_a_stack_is_ready_when_each_file_is_parsed_since_its_last_change(scenario: Scenario) -> None:
    scenario.settings.dags_folder.mkdir(parents=True, exist_ok=True)
    (scenario.settings.dags_folder / "one.py").touch()
    left = [stack.wait_for_dags(scenario.settings, ["one.py"], limit_s=0)]
    for seconds in (-3600, 1):
        scenario.sql("delete from dag_file")
        scenario.sql(
            "insert into dag_file (path, modified_at, parsed_at) values ('one.py', now(), now() + make_interval(secs => %s))",
            seconds,
        )
        left.append(stack.wait_for_dags(scenario.settings, ["one.py"], limit_s=0))

    assert left == [1, 1, 0]
