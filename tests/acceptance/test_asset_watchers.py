"""Asset watchers on a real stack: whenever a file appears, the DAGs that wait for its asset run."""

from pathlib import Path

import pytest
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.read import reads

pytestmark = [pytest.mark.stack, pytest.mark.long]

#: Unchanged from Airflow's SDK.
SOURCE = """
from airflow.providers.standard.triggers.file import DirectoryFileDeleteTrigger, FileDeleteTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

orders = Asset("orders", watchers=[AssetWatcher(name="flag", trigger=FileDeleteTrigger({folder!r} + "/orders", poke_interval=0.1))])
stock = Asset("stock", watchers=[
    AssetWatcher(name="flag", trigger=DirectoryFileDeleteTrigger(directory={folder!r}, filename="stock", poke_interval=0.1))
])

with DAG("sell", schedule=[orders], is_paused_upon_creation=False):
    @task
    def sell(triggering_asset_events=None):
        return [event.extra["payload"] for event in triggering_asset_events[orders]]
    sell()

with DAG("both", schedule=orders | stock, is_paused_upon_creation=False):
    @task
    def count(triggering_asset_events=None):
        return sorted(asset.name for asset in triggering_asset_events)
    count()
"""


def test_a_file_updates_the_asset_again_and_again(stack_factory: StackFactory, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    stack = stack_factory(
        {"watched.py": SOURCE.format(folder=str(inbox))}, schedulers=1, workers=[("default", 2)], waiters=1,
        env={"PACELINE_CORE_AIRFLOW_IMPORTS": "true"},
    )  # fmt: skip

    engine = database.create(stack.settings)

    def ended(dag_id: str) -> list[str]:
        return [str(run["state"]) for run in transact(engine, reads.runs, dag_id=dag_id) if run["ended_at"]]

    def until(**counts: int) -> None:
        wanted = {dag_id: ["success"] * count for dag_id, count in counts.items()}
        eventually(
            lambda: {dag_id: ended(dag_id) for dag_id in counts} == wanted,
            timeout=90,
            interval=0.1,
            message=lambda: f"{ {dag_id: ended(dag_id) for dag_id in counts} } {transact(engine, reads.import_errors)}",
        )

    dags = {"sell", "both", "watch__orders__flag", "watch__stock__flag"}
    try:
        eventually(
            lambda: {dag["dag_id"] for dag in transact(engine, reads.dags)} == dags,
            timeout=60,
            interval=0.1,
            message=lambda: str(transact(engine, reads.import_errors)),
        )
        for number in (1, 2):
            (inbox / "orders").write_text("")
            until(sell=number, both=number)
            assert not (inbox / "orders").exists()
        (inbox / "stock").write_text("")
        until(sell=2, both=3)
    finally:
        engine.dispose()
