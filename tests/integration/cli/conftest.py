"""The command line on a real database and broker."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner, Result
from support.rest import Rest
from support.scenario import Scenario, dag
from support.waiting import eventually

from scheduler.api import app
from scheduler.api.serve import config
from scheduler.cli import paceline
from scheduler.settings import Settings
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact


@dataclass
class Cli:
    """`paceline` with the test's settings in its environment, `env`."""

    env: dict[str, str]

    def __call__(self, *arguments: str, **env: str) -> Result:
        return CliRunner().invoke(paceline, arguments, env=self.env | env)

    def doctor(self, **env: str) -> list[dict[str, Any]]:
        """The checks of `paceline doctor`; its exit code must agree."""
        done = self("doctor", "--json", **env)
        found = json.loads(done.stdout)
        assert done.exit_code == (0 if all(check["ok"] for check in found["checks"]) else 1)
        return list(found["checks"])

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture
def environment(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings of the test as environment variables."""
    monkeypatch.chdir(tmp_path)
    return {
        "PACELINE_HOME": str(settings.home),
        "PACELINE_DAGS_FOLDER": str(settings.dags_folder),
        "PACELINE_DATABASE_URL": settings.database_url,
        "PACELINE_BROKER_URL": settings.broker_url,
    }


@pytest.fixture
def cli(environment: dict[str, str]) -> Cli:
    return Cli(environment)


@pytest.fixture
def scenario(settings: Settings) -> Iterator[Scenario]:
    """One scheduler whose turns the test takes, and the DAG `pair`: first -> second."""
    scenario = Scenario(settings)
    scenario.add(dag("pair", {"first": [], "second": ["first"]}))
    yield scenario
    scenario.close()


@pytest.fixture
def rest(settings: Settings) -> Iterator[Rest]:
    """The REST API on the same database."""
    with Rest(settings) as client:
        yield client


@pytest.fixture
def web(settings: Settings) -> Iterator[Callable[..., dict[str, str]]]:
    """A web process: the environment of a client whose account has the given rights."""
    settings = settings.model_copy(update={"web": settings.web.model_copy(update={"port": 0})})
    made = app.create(settings)
    server = uvicorn.Server(config(settings, made))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started, timeout=30)
    port = server.servers[0].sockets[0].getsockname()[1]

    def account(name: str, role: str | None = None, **tags: str) -> dict[str, str]:
        engine = made.state.service.engine
        rights = {f"bundle:{bundle}": of for bundle, of in tags.items()}
        account = transact(engine, accounts.create, name, "correct horse battery", role=role, tags=rights)
        token, _ = transact(engine, logins.issue, account.id, "token", lasts_s=600.0, name="test")
        return {"PACELINE_URL": f"http://127.0.0.1:{port}", "PACELINE_TOKEN": token}

    yield account
    made.state.service.stopping.set()
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Runs functions in threads that the test waits for at its end; their errors fail it."""
    from concurrent.futures import Future, ThreadPoolExecutor

    started: list[Future[object]] = []
    with ThreadPoolExecutor(4) as pool:
        yield lambda work: started.append(pool.submit(work))
    for future in started:
        future.result(timeout=60)
