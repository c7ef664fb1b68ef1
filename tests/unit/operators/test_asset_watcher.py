"""Asset watchers: the DAGs that are generated for them, and their tasks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import Asset, AssetWatcher
from paceline.authoring import deferral
from paceline.exceptions import DagError, TaskDeferred
from paceline.triggers import BaseEventTrigger, DirectoryFileDeleteTrigger, FileDeleteTrigger
from scheduler.dagfiles.load import forget, load
from scheduler.dagfiles.loaded_files import LoadedFiles
from scheduler.testing import runs

FILE = """
from paceline import DAG, Asset, AssetWatcher, task
from paceline.triggers import DateTimeTrigger, FileDeleteTrigger

orders = Asset("s3://orders/new", watchers=[AssetWatcher("file", FileDeleteTrigger("/tmp/orders", poke_interval=1))])
with DAG("consumer", schedule=orders | Asset("other")):
    @task
    def count(triggering_asset_events=None): ...
    count()
with DAG("second", schedule=[orders]):
    @task
    def again(): ...
    again()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "d.py").write_text(FILE)
    yield tmp_path
    forget(tmp_path, "d.py")


def test_a_watcher_is_a_dag_that_runs_all_the_time_and_updates_the_asset(folder: Path) -> None:
    dags = load(folder, "d.py")

    assert list(dags) == ["consumer", "second", "watch__s3_orders_new__file"]
    dag = dags["watch__s3_orders_new__file"]
    assert (dag.schedule, dag.max_active_runs, dag.catchup, dag.is_paused_upon_creation) == ("@continuous", 1, False, False)
    assert dag.fileloc == dags["consumer"].fileloc and "asset-watcher" in dag.tags
    watch = dag.get_task("watch")
    assert [asset.uri for asset in watch.outlets] == ["s3://orders/new"]
    with pytest.raises(TaskDeferred) as deferred:
        watch.execute(runs.context_of(watch))  # type: ignore[attr-defined]
    assert deferral.serialized(deferred.value.trigger) == (
        "paceline.triggers.FileDeleteTrigger", {"filepath": "/tmp/orders", "poke_interval": 1}
    )  # fmt: skip
    assert LoadedFiles(folder).dag("d.py", dag.dag_id).dag_id == dag.dag_id


def test_the_event_of_the_trigger_is_in_the_extra_of_the_update(tmp_path: Path, folder: Path) -> None:
    (folder / "d.py").write_text(FILE.replace("/tmp/orders", str(tmp_path / "orders")).replace("poke_interval=1", "0.01"))
    (tmp_path / "orders").write_text("")
    dag = load(folder, "d.py")["watch__s3_orders_new__file"]

    result = runs.run_dag(dag)

    assert result.success and not (tmp_path / "orders").exists()
    events = next(value for key, value in result.all_xcoms["watch"].items() if key != "return_value")
    assert events["s3://orders/new"]["extra"] == {"from_trigger": True, "payload": str(tmp_path / "orders")}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("w", 3), "AssetWatcher 'w': trigger takes a BaseTrigger"),
        (("w", FileDeleteTrigger), "write FileDeleteTrigger"),
        ((" ", FileDeleteTrigger("/x")), "The name of a watcher of an asset must have"),
    ],
)
def test_a_wrong_watcher_is_refused(given: tuple[Any, Any], words: str) -> None:
    with pytest.raises(DagError, match=words):
        AssetWatcher(*given)
    with pytest.raises(DagError, match="Asset 'a': watchers takes a list of AssetWatcher"):
        Asset("a", watchers=[FileDeleteTrigger("/x")])  # type: ignore[list-item]


def test_a_file_fires_once_and_is_deleted(tmp_path: Path) -> None:
    triggers: list[BaseEventTrigger] = [
        FileDeleteTrigger(str(tmp_path / "x"), 0.01),
        DirectoryFileDeleteTrigger(directory=str(tmp_path), filename="x", poke_interval=0.01),
    ]
    for trigger in triggers:
        path, arguments = deferral.serialized(trigger)
        assert path.endswith(type(trigger).__name__)
        (tmp_path / "x").write_text("")

        assert asyncio.run(deferral.first_event(type(trigger)(**arguments))) == str(tmp_path / "x")
        assert not (tmp_path / "x").exists()
