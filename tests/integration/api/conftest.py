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

from paceline.states import TaskState as S
from scheduler.api import app as apps
from scheduler.api.call import Service
from scheduler.api.serve import config
from scheduler.settings import Settings, log_paths
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact
from scheduler.store.worker.claims import Ending

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash with argon2id in microseconds: with its defaults a hash takes 0.16 s of CPU, and each test needs some."""
    monkeypatch.setattr(accounts, "TIME_COST", 1)
    monkeypatch.setattr(accounts, "MEMORY_COST", 8)
    monkeypatch.setattr(accounts, "LANES", 1)


class Server:
    """A web server in a thread. Each test can have a service of its own on it, since to make the routes takes long."""

    def __init__(self, settings: Settings) -> None:
        self.app = apps.create(settings)
        self._server = uvicorn.Server(config(settings, self.app))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started, timeout=30)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """The effect of SIGTERM."""
        self.app.state.service.stopping.set()
        self._server.should_exit = True

    def close(self) -> None:
        self.stop()
        self._thread.join(30)


class Web:
    """A web process for tests: a server, with the service of one test."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.app, self.url = server.app, server.url
        self.settings, self.engine = self.app.state.service.settings, self.app.state.service.engine

    def account(self, name: str, role: str | None = None, tags: dict[str, str] | None = None) -> str:
        """Create an account; its API token."""
        account = transact(self.engine, accounts.create, name, PASSWORD, role=role, tags=tags)
        token, _ = transact(self.engine, logins.issue, account.id, "token", lasts_s=600.0, name="test")
        return token

    def http(self, token: str | None = None, **options: Any) -> httpx.Client:
        """A plain client."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, **options)


def of_test(settings: Settings, **values: Any) -> Settings:
    """These settings on any port, with no limit of logins."""
    return settings.model_copy(update={"web": settings.web.model_copy(update={"port": 0, "login_attempts": 1000, **values})})


@pytest.fixture
def make_web(settings: Settings) -> Iterator[Callable[..., Web]]:
    """Start web processes with settings of their own."""
    made: list[Server] = []

    def make(base: Settings = settings, **values: Any) -> Web:
        made.append(Server(of_test(base, **values)))
        return Web(made[-1])

    yield make
    for server in made:
        server.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    """The server that the tests of a file share: none before the first test that needs it."""
    shared: list[Server] = []
    yield shared
    for server in shared:
        server.close()


@pytest.fixture
def web(servers: list[Server], settings: Settings) -> Iterator[Web]:
    """One web process."""
    if not servers:
        servers.append(Server(of_test(settings)))
    else:
        servers[0].app.state.service = Service.of(of_test(settings))
    yield Web(servers[0])
    servers[0].app.state.service.close()


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
