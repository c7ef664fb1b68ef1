"""`paceline migrate-airflow --shadow` reads the REST API of Airflow, which is that of Paceline: it is compared with itself."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scheduler.cli import paceline
from scheduler.migrate import shadow

from .conftest import PASSWORD, Web, World


def run(web: Web, *arguments: str, url: str = "", **environment: str) -> Result:
    settings = web.settings
    own = {
        "PACELINE_HOME": str(settings.home),
        "PACELINE_DATABASE_URL": settings.database_url,
        "PACELINE_BROKER_URL": settings.broker_url,
    }
    words = ["migrate-airflow", "--shadow", url or web.url, "--since", "2026-01-01T00:00:00+00:00", *arguments]
    return CliRunner().invoke(paceline, words, env={**own, **environment})


def test_finished_runs_are_compared_page_by_page(web: Web, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "PAGE", 1)
    web.account("ada", "viewer")

    done = run(web, AIRFLOW_API_USER="ada", AIRFLOW_API_PASSWORD=PASSWORD)

    assert (done.exit_code, done.stderr) == (0, "2 runs compared, 0 differences.\n")


def test_a_different_state_is_reported(web: Web, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    states = shadow.Airflow.states

    def changed(self: Any, dag_id: str, run_id: str) -> shadow.States:
        return {**states(self, dag_id, run_id), ("load", -1): "skipped"}

    monkeypatch.setattr(shadow.Airflow, "states", changed)

    done = run(web, "--dag", "etl", "--json", AIRFLOW_API_TOKEN=web.account("ada", "viewer"))

    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["runs"] == 2
    assert [(one["logical_date"][:10], one["task_id"], one["airflow"], one["paceline"]) for one in found["differences"]] == [
        ("2026-01-01", "load", "skipped", "success"),
        ("2026-01-02", "load", "skipped", "upstream_failed"),
    ]


def test_wrong_access_is_one_sentence(web: Web, world: World) -> None:
    web.account("ada", "viewer")

    for environment, words in (
        ({"AIRFLOW_API_TOKEN": "x"}, "rejected the token or the user"),
        ({"AIRFLOW_API_USER": "ada", "AIRFLOW_API_PASSWORD": "wrong"}, "rejected the token or the user"),
        ({}, "Set AIRFLOW_API_TOKEN, or AIRFLOW_API_USER and AIRFLOW_API_PASSWORD"),
    ):
        done = run(web, **environment)
        assert (done.exit_code != 0, words in done.stderr) == (True, True), done.stderr
    done = run(web, url="http://127.0.0.1:1", AIRFLOW_API_TOKEN="x")
    assert (done.exit_code, done.stderr) == (4, "Error: Airflow at http://127.0.0.1:1 cannot be reached: ConnectionError.\n")
