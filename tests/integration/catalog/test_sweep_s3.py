"""On S3, what a killed process left in the folders of tables is found and deleted as on a disk."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from support import tables
from support.s3 import s3_server
from support.scenario import Scenario
from support.tables import SCHEMA, Lake, ids, rows

from paceline.states import TaskState
from scheduler.catalog import gc
from scheduler.settings import Settings
from scheduler.store.worker.claims import Ending

pytest.importorskip("moto", reason="make test-tables installs it")


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Iterator[Settings]:
    """Settings with a warehouse in a bucket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = f"s3.endpoint=http://127.0.0.1:{port} s3.region=us-east-1 s3.access-key-id=a s3.secret-access-key=b"
    own = settings.tables.model_copy(update={"warehouse": "s3://bucket/lake", "storage_options": options})
    with s3_server(port, tmp_path / "s3.log", "bucket"):
        yield settings.model_copy(update={"tables": own})


@pytest.fixture
def lake(make_scenario: Callable[..., Scenario]) -> Iterator[Lake]:
    with tables.lake(make_scenario()) as served:
        served.person().create_namespace("sales")
        yield served


def files(lake: Lake) -> set[str]:
    return {place for place, _ in lake.tables.warehouse.listed(lake.tables.warehouse.url)}


def collect(lake: Lake) -> gc.Collected:
    return gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0)


def test_files_that_nothing_needs_are_deleted_from_s3(lake: Lake) -> None:
    kept = lake.person().create_table("sales.kept", SCHEMA)
    kept.append(rows(1))
    collect(lake)
    before = files(lake)
    assert len(before) > 3
    claim, catalog = lake.attempt()
    table = catalog.load_table("sales.kept")
    table.append(rows(2))
    catalog.create_table("sales.new", SCHEMA).append(rows(3))
    assert isinstance(lake.tables.warehouse.io, PyArrowFileIO)
    for place in (f"{table.location()}/data/stray.parquet", f"{catalog.load_table('sales.new').location()}/data/stray.parquet"):
        with lake.tables.warehouse.io.new_output(place).create() as stream:
            stream.write(b"rows")
    assert collect(lake).files == 0, "the try is running"

    assert lake.scenario.follower.report(claim, Ending(TaskState.FAILED, reason="no")).is_stored
    assert (collect(lake).failed, files(lake)) == (0, before)
    assert ids(kept.refresh()) == [1]
