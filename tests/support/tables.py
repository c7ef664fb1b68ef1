"""A catalog of tables for tests: served on a port of this machine, over the database of a scenario."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import uvicorn
from fastapi import FastAPI, Request
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from scheduler.catalog import app
from scheduler.catalog.access import Access, Caller
from scheduler.catalog.tables import Tables
from scheduler.settings import Settings
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim
from support.scenario import Scenario, chain
from support.waiting import eventually
from workers.tables import process

SCHEMA = pa.schema([("id", pa.int64()), ("who", pa.string())])


def with_tables(settings: Settings) -> Settings:
    """Settings with a warehouse in the home folder of the test."""
    return settings.model_copy(update={"tables": settings.tables.model_copy(update={"warehouse": str(settings.home / "lake")})})


def rows(*ids: int, who: str = "") -> pa.Table:
    """Rows with these IDs."""
    return pa.table({"id": list(ids), "who": [who] * len(ids)}, schema=SCHEMA)


def ids(table: Table) -> list[int]:
    """The IDs of all rows, in order."""
    return sorted(table.scan().to_arrow()["id"].to_pylist())


@contextlib.contextmanager
def served(application: FastAPI) -> Iterator[str]:
    """Serve an application on a free port; its address."""
    config = process.config(application)
    config.port, config.host = 0, "127.0.0.1"
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started, timeout=20, interval=0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


@dataclass
class Lake:
    """The catalog of a scenario, for tries and for people: a token that starts with a name is a person's."""

    scenario: Scenario
    tables: Tables
    uri: str
    #: The requests that it was sent, such as `GET /v1/config`.
    requests: list[str] = field(default_factory=list)

    def access(self, token: str) -> Access:
        return Access(self.uri, token, self.tables.warehouse.url, self.tables.catalog, self.scenario.settings.tables.storage)

    def catalog(self, token: str) -> RestCatalog:
        found = load_catalog("lake", **self.access(token).properties)
        assert isinstance(found, RestCatalog)
        return found

    def person(self, name: str = "ada") -> RestCatalog:
        return self.catalog(f"person-{name}")

    def claim(self, dag_id: str = "d", length: int = 1, **options: Any) -> Claim:
        """A running task instance of a new DAG run."""
        self.scenario.start(chain(dag_id, length, **options))
        (message,) = self.scenario.messages()
        claim = self.scenario.claim(message)
        assert claim is not None
        return claim

    def attempt(self, dag_id: str = "d", **options: Any) -> tuple[Claim, RestCatalog]:
        """A running try and its catalog."""
        claim = self.claim(dag_id, **options)
        return claim, self.catalog(table_tries.give_token(self.scenario.hot.dicts, claim))


@contextlib.contextmanager
def lake(scenario: Scenario) -> Iterator[Lake]:
    """Serve the catalog of a scenario, whose settings have a warehouse."""
    tables = Tables(scenario.settings, scenario.engine)
    of_tries = app.of_tries(tables)

    def authenticate(request: Request) -> Caller:
        token = app.bearer(request)
        if token.startswith("person-"):
            return Caller(token.removeprefix("person-"), may_write=True)
        return of_tries(request)

    requests: list[str] = []

    def noted(request: Request) -> Caller:
        requests.append(f"{request.method} {request.url.path}")
        return authenticate(request)

    with served(app.create(tables, noted)) as uri:
        yield Lake(scenario, tables, uri, requests)
