"""GET /metrics of a scheduler and of a web process, which read the same database."""

import contextlib
import threading
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from support.scenario import Scenario, chain
from support.waiting import eventually

from scheduler.api import app as apps
from scheduler.process import measures
from scheduler.process.health import Health, StepHealth
from scheduler.process.health_server import HealthServer
from scheduler.settings import Settings
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact
from scheduler.telemetry import parts


def on(settings: Settings) -> Settings:
    return settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"prometheus": True, "interval": 0.05})})


def value(text: str, name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return found[0] if found else None


def test_a_scheduler_serves_counters_of_events_and_gauges(scenario: Scenario, short_folder: Path) -> None:
    settings = on(scenario.settings)
    health = Health("scheduler", lambda: "s#1", {"loop": StepHealth("The loop hangs", 10.0)})
    with contextlib.ExitStack() as ending:
        pages = parts.start(settings, health, ending)
        server = HealthServer(health, path=short_folder / "s", pages=pages)
        ending.callback(server.close)
        client = ending.enter_context(httpx.Client(transport=httpx.HTTPTransport(uds=str(short_folder / "s"))))

        def page() -> str:
            return client.get("http://local/metrics").raise_for_status().text

        eventually(lambda: value(page(), "paceline_events_behind_seconds") is not None)
        scenario.finish(chain("c", 2))
        measures.count("scheduler_heartbeat")
        eventually(lambda: value(page(), "airflow_dagrun_duration_success_seconds_count", dag_id="c") == 1)

        text = page()
        assert value(text, "airflow_ti_finish_total", dag_id="c", task_id="t001", state="success") == 1
        assert (value(text, "airflow_scheduler_heartbeat_total") or 0) >= 1
        assert value(text, "airflow_job_name_start_total", job_name="schedulerjob") == 1
        eventually(lambda: value(page(), "airflow_dagbag_size") == 1)
        assert (value(text, "paceline_health", part="loop"), value(text, "paceline_database_up")) == (1, 1)
        assert client.get("http://local/health").status_code == 200
        assert client.get("http://local/other").json() == {"error": "There is only /health, /alive, /metrics here."}
    assert not any(thread.name == "telemetry" for thread in threading.enumerate())


@pytest.mark.parametrize("is_on", [True, False])
def test_a_web_process_serves_gauges_to_accounts_that_may_view(scenario: Scenario, is_on: bool) -> None:
    settings = on(scenario.settings) if is_on else scenario.settings
    account = transact(scenario.engine, accounts.create, "prometheus", "correct horse battery", role="viewer")
    token, _ = transact(scenario.engine, logins.issue, account.id, "token", lasts_s=600.0, name="test")
    other = transact(scenario.engine, accounts.create, "other", "correct horse battery", role=None, tags={"nightly": "admin"})
    limited, _ = transact(scenario.engine, logins.issue, other.id, "token", lasts_s=600.0, name="test")
    with TestClient(apps.create(settings)) as client:
        assert client.get("/metrics").status_code == 401
        answer = client.get("/metrics", headers={"Authorization": f"Bearer {token}"})
        assert client.get("/metrics", headers={"Authorization": f"Bearer {limited}"}).status_code == 403

        if not is_on:
            assert answer.status_code == 404
            return
        assert answer.status_code == 200
        assert value(answer.text, "paceline_processes", kind="scheduler", state="alive") == 1
        assert value(answer.text, "paceline_web_requests_total", method="GET", status="401") == 1
