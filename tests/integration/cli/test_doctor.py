"""`paceline doctor` on a running installation: passed checks, and work that cannot run."""

import json
from typing import Any

import pytest
from support.scenario import Scenario, dag

from scheduler.messaging import wakeups

from .conftest import Cli


def problems(cli: Cli, check: str, **env: str) -> list[dict[str, Any]]:
    report = json.loads(cli("doctor", "--json", **env).stdout)
    found = [finding for finding in report["checks"] if not finding["ok"] and finding["check"] == check]
    assert all(finding["fix"] for finding in found)
    return found


def test_a_healthy_installation_has_nothing_to_fix(cli: Cli, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, report = cli("doctor"), json.loads(cli("doctor", "--json").stdout)

    not_java = [finding for finding in report["checks"] if finding["check"] != "java"]
    assert [finding for finding in not_java if not finding["ok"]] == []
    assert {"database", "broker", "schema", "schedulers", "workers", "dags folder"} <= {f["check"] for f in not_java}
    assert "PostgreSQL" in shown.stdout
    assert shown.exit_code == (0 if report["ok"] else 1)


def test_no_java_is_a_problem_with_advice(cli: Cli, scenario: Scenario) -> None:
    (problem,) = problems(cli, "java", PATH="/nonexistent", JAVA_HOME="/nonexistent")

    assert "No Java" in problem["message"]
    assert "Install Java" in problem["fix"]


def test_a_queue_with_work_and_no_worker_is_named(cli: Cli, scenario: Scenario) -> None:
    scenario.start(dag("lonely", {"a": []}, task={"queue": "nobody"}))
    scenario.turn()

    (problem,) = problems(cli, "queues")

    assert "1 task instance waits in queue 'nobody'" in problem["message"]
    assert "`paceline worker -q nobody`" in problem["fix"]
    assert cli("doctor").exit_code == 1


def test_a_pool_that_does_not_exist_is_named(cli: Cli, scenario: Scenario) -> None:
    scenario.triggered(dag("lost", {"a": []}, task={"pool": "nowhere"}))

    (problem,) = problems(cli, "pools")

    assert "'nowhere', which does not exist" in problem["message"]
    assert "paceline pools set 'nowhere'" in problem["fix"]


def test_a_task_that_can_never_fit_its_pool_is_named(cli: Cli, scenario: Scenario) -> None:
    scenario.pool("small", 1)
    scenario.start(dag("fat", {"a": []}, task={"pool": "small", "pool_slots": 3}))
    scenario.turn()

    (problem,) = problems(cli, "pools")

    assert "needs 3 slots of pool 'small', which has 1" in problem["message"]


def test_silent_and_missing_processes_are_named(cli: Cli, scenario: Scenario) -> None:
    scenario.sql("update process set heartbeat_at = now() - interval '1 hour' where kind = 'worker'")
    scenario.sql("update process set stopped_at = now() where kind = 'scheduler'")

    none, silent = problems(cli, "workers")
    (scheduler,) = problems(cli, "schedulers")

    assert none["message"] == "No worker is alive."
    assert "worker w on h (process 1) has sent no heartbeat" in silent["message"]
    assert scheduler["fix"] == "Start one: `paceline scheduler`."


def test_import_errors_are_named_up_to_a_few(cli: Cli, scenario: Scenario) -> None:
    for number in range(7):
        scenario.sql("insert into import_error (file, line, message) values (%s, 3, 'bad')", f"f{number}.py")

    found = problems(cli, "dag files")

    assert [finding["message"] for finding in found] == [*(f"f{n}.py:3: bad" for n in range(5)), "2 more cannot be read."]


def test_a_schema_that_does_not_fit_names_the_command(cli: Cli, empty_database_url: str) -> None:
    cli.env["PACELINE_DATABASE_URL"] = empty_database_url

    (problem,) = problems(cli, "database")

    assert "no Paceline tables" in problem["message"]
    assert problem["fix"] == "Run `paceline db migrate`."


def test_a_broker_that_refuses_the_password_is_reported(cli: Cli, scenario: Scenario) -> None:
    client = wakeups.client(scenario.settings)
    client.acl_setuser("picky", enabled=True, passwords=["+right"], commands=["+@all"])
    url = cli.env["PACELINE_BROKER_URL"].replace("redis+socket://", "redis+socket://picky:wrong@")

    (problem,) = problems(cli, "broker", PACELINE_BROKER_URL=url)
    client.acl_deluser("picky")
    client.close()

    assert "Redis rejects the connection" in problem["message"]
    assert "wrong@" not in json.dumps(problem)


def test_a_run_that_cannot_be_decided_is_named(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="r")
    scenario.sql("update dag_version set data = '{}' where dag_id = 'pair'")
    scenario.turn()

    (problem,) = problems(cli, "runs")

    assert problem["message"].startswith("Run r of DAG pair cannot be decided: The stored DAG version")
    assert "`paceline runs clear pair 'r' --latest`" in problem["fix"]
    assert cli("doctor").exit_code == 1
    for shown in (cli("runs", "list"), cli("runs", "show", "pair", "r"), cli("tasks", "why", "pair", "r", "first")):
        assert "The stored DAG version" in shown.stdout, shown.output
