"""Tasks that write three tables while PostgreSQL is killed, and on an S3 server that delays, fails, and does things twice."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import Request
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from support import table_faults
from support.faulty import FULL, faulty_stack
from support.faulty_s3 import FaultyS3, faulty_s3
from support.ledger import Ledger
from support.s3 import s3_server
from support.servers import DURABLE, PostgresServer, running_postgres
from support.stacks import StackFactory
from support.table_faults import Survival
from support.tables import served, with_tables
from support.waiting import eventually

from scheduler.catalog import app
from scheduler.catalog.access import Caller
from scheduler.catalog.tables import Tables
from scheduler.embedded.stack import free_port
from scheduler.settings import Settings
from scheduler.store.db import database

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(6 * 3600 if FULL else 900)]

TIMES = int(os.environ.get("TABLES_TIMES", "20" if FULL else "1"))
SEED = int(os.environ.get("TABLES_SEED", "20261128"))
#: A process waits there while the server dies.
POINTS = ("tables.written", "tables.stored", "publish.moved", "follow.commit", "report.after")
S3 = "s3.access-key-id=x s3.secret-access-key=y s3.region=us-east-1 s3.endpoint=http://127.0.0.1:{}"


@contextlib.contextmanager
def survival(factory: StackFactory, ledger: Ledger, settings: Settings, folder: Path, env: dict[str, str]) -> Iterator[Survival]:
    """A stack and a catalog for people outside of all tries, with the tables of `settings`."""
    engine = database.create(settings)
    tables = Tables(settings, engine)
    files = table_faults.prepared(folder / "tasks")
    workers = [("default", 2), ("default", 2)]

    def authenticate(request: Request) -> Caller:
        return Caller("person", may_write=True)

    with (
        served(app.create(tables, authenticate)) as uri,
        faulty_stack(factory, ledger, folder / "faults", files=files, env=env, schedulers=1, workers=workers, waiters=0) as faulty,
    ):
        catalog = load_catalog("outside", type="rest", uri=uri, token="person", **settings.tables.storage)
        assert isinstance(catalog, RestCatalog)
        faulty.stack.settings = settings
        yield Survival(faulty, tables, catalog, folder / "tasks")
    engine.dispose()


@pytest.fixture
def own_postgres(short_folder: Path) -> Iterator[PostgresServer]:
    with running_postgres(short_folder / "own", DURABLE) as server:
        yield server


def answers(url: str) -> bool:
    with contextlib.suppress(Exception):
        return Ledger(url).rows("select 1") == [(1,)]
    return False


def test_tables_survive_crashes_of_the_database(
    own_postgres: PostgresServer, ledger: Ledger, settings: Settings, tmp_path: Path
) -> None:
    with own_postgres.new_database() as url:
        settings = with_tables(settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})}))
        env = {"PACELINE_TABLES_WAREHOUSE": settings.tables.warehouse}
        with StackFactory(settings) as factory, survival(factory, ledger, settings, tmp_path, env) as one:
            for point in POINTS:
                for _ in range(TIMES):
                    with one.judged(point) as round_:
                        one.faulty.inject(f"{point}=delay:2@1")
                        round_.start()
                        eventually(one.faulty.struck, timeout=60, message=one.faulty.stack.logs)
                        one.faulty.engine.dispose()
                        postgres = own_postgres.embedded.supervisor
                        os.kill(postgres.pid(own_postgres.embedded.name), signal.SIGKILL)
                        eventually(lambda: answers(url), timeout=120, interval=0.2)
                        round_.settle()
                        one.kills[point] += 1
            print(json.dumps(table_faults.counted(one)), file=sys.stderr)
            assert one.found == []


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[tuple[int, FaultyS3]]:
    pytest.importorskip("moto", reason="make test-tables installs it")
    port = free_port("127.0.0.1", 0)
    with s3_server(port, tmp_path / "s3.log", "lake"), faulty_s3(port, SEED) as proxy:
        yield port, proxy


def test_tables_survive_a_storage_that_delays_fails_and_does_things_twice(
    stack_factory: StackFactory, ledger: Ledger, settings: Settings, s3: tuple[int, FaultyS3], tmp_path: Path
) -> None:
    port, proxy = s3
    where = {"warehouse": "s3://lake/tables", "storage_options": S3.format(port)}
    settings = settings.model_copy(update={"tables": settings.tables.model_copy(update=where)})
    env = {
        "PACELINE_TABLES_WAREHOUSE": where["warehouse"],
        "PACELINE_TABLES_STORAGE_OPTIONS": S3.format(proxy.server_address[1]),
    }
    with survival(stack_factory, ledger, settings, tmp_path, env) as one:
        for number in range(5 * TIMES):
            with one.judged(f"round {number}") as round_:
                round_.start()
                # A try fails at a fault that no client of S3 repeats, and a busy machine makes each try long.
                round_.settle(timeout=600)
            print(f"{number + 1} rounds with {proxy.counts}; found: {one.found}", file=sys.stderr)
        tries = one.faulty.rows("select reason, count(*) from task_try group by 1")
    print(json.dumps({**table_faults.counted(one), "s3": proxy.counts, "failed tries": len(tries)}), file=sys.stderr)
    assert one.found == []
    assert all(proxy.counts[fault] for fault in ("delayed", "refused", "twice")), proxy.counts
