"""A real web process in a thread, with real PostgreSQL and Redis, and Airflow's own client."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from airflow_client import client as airflow
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from scheduler.api import app as apps
from scheduler.api.serve import config
from scheduler.settings import Settings, log_paths
from scheduler.states import TaskState as S
from scheduler.store.accounts import accounts, keys
from scheduler.store.db.database import transact
from scheduler.store.worker.claims import Ending

PASSWORD = "correct horse battery"


class Web:
    """A running web process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.app = apps.create(settings)
        self._server = uvicorn.Server(config(settings, self.app))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started, timeout=30)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.engine = self.app.state.service.engine

    def account(self, name: str, role: str | None = None, tags: dict[str, str] | None = None) -> str:
        """Create an account; its API token."""
        made = transact(self.engine, accounts.create, name, PASSWORD, role=role, tags=tags)
        token, _ = transact(self.engine, keys.issue, made.id, "token", lasts_s=600.0, name="test")
        return token

    def http(self, token: str | None = None, **options: Any) -> httpx.Client:
        """A plain client."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, **options)

    def close(self) -> None:
        self.app.state.service.stopping.set()
        self._server.should_exit = True
        self._thread.join(30)


@pytest.fixture
def make_web(settings: Settings) -> Iterator[Callable[..., Web]]:
    """Start web processes with settings of their own."""
    made: list[Web] = []

    def make(base: Settings = settings, **values: Any) -> Web:
        web = base.web.model_copy(update={"port": 0, "login_attempts": 1000, **values})
        made.append(Web(base.model_copy(update={"web": web})))
        return made[-1]

    yield make
    for web in made:
        web.close()


@pytest.fixture
def web(make_web: Callable[..., Web]) -> Web:
    """One web process."""
    return make_web()


@pytest.fixture
def client(web: Web) -> Iterator[airflow.ApiClient]:
    """Airflow's client, unmodified, logged in as an administrator with a JWT from POST /auth/token."""
    web.account("ada", "admin")
    token = httpx.post(f"{web.url}/auth/token", json={"username": "ada", "password": PASSWORD}).raise_for_status()
    configuration = airflow.Configuration(host=web.url, access_token=token.json()["access_token"])
    with airflow.ApiClient(configuration) as made:
        yield made


@pytest.fixture
def scenario(make_scenario: Callable[..., Scenario]) -> Scenario:
    """One scheduler, follow on."""
    return make_scenario()


@dataclass
class World:
    """Three runs of the DAG `etl` (extract >> each[0..2] >> load): `good` succeeded, `bad` failed, `now` runs."""

    scenario: Scenario

    def log(self, run_id: str, task_id: str, text: str, *, try_number: int = 1, map_index: int = -1) -> Path:
        """Write the log of a try."""
        path = Path(
            log_paths.try_path(
                self.scenario.settings.logs_folder,
                dag_id="etl", run_id=run_id, task_id=task_id, map_index=map_index, try_number=try_number,
            )
        )  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def state(self, run_id: str) -> str:
        return str(self.scenario.rows("select state from dag_run where run_id = %s", run_id)[0][0])

    def states(self, run_id: str) -> dict[str, str]:
        (key,) = self.scenario.rows("select id from dag_run where run_id = %s", run_id)[0]
        return self.scenario.states(key)


@pytest.fixture
def world(scenario: Scenario) -> World:
    """Runs to look at and to change."""
    mapped = {"expand": {"kind": "product", "inputs": [{"literal": 3}]}, "group": "g", "retries": 1}
    scenario.settings.dags_folder.joinpath("etl.py").write_text("# the file of etl\n", encoding="utf-8")
    scenario.add(
        dag(
            "etl",
            {"extract": [], "each": ["extract"], "load": ["each"]},
            tags=("nightly",),
            groups=({"group_id": "g", "parent": None, "tooltip": ""},),
            options={"each": mapped},
            params={"rows": {"value": 3, "schema": {"type": "integer"}, "description": None}},
        )
    )
    scenario.add(chain("hourly", 1, schedule={"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}, catchup=False))
    scenario.sql("update dag_schedule s set planned_version_id = d.version_id, next_run_after = 'infinity' from dag d"
                 " where d.dag_id = s.dag_id")  # fmt: skip
    scenario.trigger("etl", run_id="good", logical_date=datetime(2026, 1, 1, tzinfo=UTC), conf={"rows": 5})
    scenario.run_to_end(outcome=lambda claim: Ending(S.SUCCESS, result=f'"{claim.task_id}"'))
    scenario.trigger("etl", run_id="bad", logical_date=datetime(2026, 1, 2, tzinfo=UTC))
    scenario.run_to_end(outcome=lambda claim: S.FAILED)
    scenario.trigger("etl", run_id="now", logical_date=datetime(2026, 1, 3, tzinfo=UTC))
    scenario.turn()
    for message in scenario.messages():
        assert scenario.claim(message) is not None
    return World(scenario)
