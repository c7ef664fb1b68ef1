"""Runs DAGs with Airflow's `dag.test()`, each in a process of its own, and prints how their task instances end, as JSON.

`python run_in_airflow.py FOLDER SECONDS`, with the Python of an environment that has Airflow and an empty database (`airflow db
migrate`), AIRFLOW_HOME set. A DAG that takes longer than SECONDS has no answer.
"""

import asyncio
import functools
import json
import os
import shutil
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apart
import httpx
from airflow import settings
from airflow.dag_processing import dagbag
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import timezone
from airflow.sdk.api.datamodels._generated import API_VERSION
from airflow.sdk.execution_time.supervisor import in_process_api_server
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.session import create_session

DATE = datetime(2026, 1, 5, tzinfo=UTC)
HOME = Path(os.environ["AIRFLOW_HOME"])


def main(folder: str, limit_s: float) -> None:
    DagBundlesManager().sync_bundles_to_db()
    bag = dagbag.BundleDagBag(dag_folder=folder, bundle_path=Path(folder), bundle_name="dags-folder")
    # Airflow cannot store DAGs that use plugins, which are not installed.
    errors = {dag_id: text for dag_id, dag in bag.dags.items() if (text := problem(dag))}
    # In one order, since of two assets with one URI only that of the first DAG is active.
    bag.dags = {dag_id: dag for dag_id, dag in sorted(bag.dags.items()) if dag_id not in errors}
    dagbag.sync_bag_to_db(bag, "dags-folder", None)
    # All DAGs are stored now, and `dag.test()` would read all files again.
    dagbag.BundleDagBag = dagbag.sync_bag_to_db = lambda *_, **__: None
    # Retries follow without their delay, as in memory.
    TaskInstance.is_premature = property(lambda self: False)
    asyncio.run(first_request())
    with create_session() as session:
        session.connection().exec_driver_sql("pragma wal_checkpoint(truncate)")
    settings.dispose_orm()
    works = {dag_id: functools.partial(run, dag) for dag_id, dag in bag.dags.items()}
    found = apart.answers(works, folder=HOME, limit_s=limit_s)
    print(json.dumps({"runs": found, "errors": {**errors, **{str(path): text for path, text in bag.import_errors.items()}}}))


async def first_request() -> None:
    """Let the server of tasks build its routes here: that takes seconds, and each child would do it again."""
    transport = httpx.ASGITransport(in_process_api_server().app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://here", headers={"airflow-api-version": API_VERSION}
    ) as client:
        await client.patch(f"/task-instances/{uuid.UUID(int=0)}/run", json={})


def problem(dag: Any) -> str:
    try:
        DagSerialization.serialize_dag(dag)
    except Exception as error:
        return str(error)
    return ""


def run(dag: Any) -> Any:
    """The states of its run. Each run has a copy of the database, and so finds no other runs and no events of assets."""
    database = HOME / f"{dag.dag_id}.db"
    shutil.copy(HOME / "airflow.db", database)
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{database}"
    settings.configure_vars()
    settings.configure_orm()
    done = dag.test(logical_date=timezone.coerce_datetime(DATE))
    with create_session() as session:
        instances = done.get_task_instances(session=session)
        states = {
            instance.task_id if instance.map_index < 0 else f"{instance.task_id}[{instance.map_index}]": str(instance.state)
            for instance in instances
        }
    return {"state": str(done.state), "tasks": states}


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
