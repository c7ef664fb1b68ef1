"""Runs DAGs with Airflow's `dag.test()`, each in a process of its own, and prints how their task instances end, as JSON.

`python run_in_airflow.py FOLDER SECONDS`, with the Python of an environment that has Airflow and an empty database (`airflow db
migrate`), AIRFLOW_HOME set. A DAG that takes longer than SECONDS has no answer.
"""

import functools
import json
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apart
from airflow import settings
from airflow.dag_processing import dagbag
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import timezone
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
    bag.dags = {dag_id: dag for dag_id, dag in bag.dags.items() if dag_id not in errors}
    dagbag.sync_bag_to_db(bag, "dags-folder", None)
    # All DAGs are stored now, and `dag.test()` would read all files again.
    dagbag.BundleDagBag = dagbag.sync_bag_to_db = lambda *_, **__: None
    # Retries follow without their delay, as in memory.
    TaskInstance.is_premature = property(lambda self: False)
    # All children need it, and it takes seconds.
    in_process_api_server().app  # noqa: B018
    with create_session() as session:
        session.connection().exec_driver_sql("pragma wal_checkpoint(truncate)")
    settings.dispose_orm()
    found = {dag_id: ended(bag.dags[dag_id], limit_s) for dag_id in sorted(bag.dags)}
    print(json.dumps({"runs": found, "errors": {**errors, **{str(path): text for path, text in bag.import_errors.items()}}}))


def problem(dag: Any) -> str:
    try:
        DagSerialization.serialize_dag(dag)
    except Exception as error:
        return str(error)
    return ""


def ended(dag: Any, limit_s: float) -> Any:
    """The states of its run. Each run has a copy of the database, and so finds no other runs and no events of assets."""
    copy = HOME / f"{dag.dag_id}.db"
    shutil.copy(HOME / "airflow.db", copy)
    found = apart.answer(dag.dag_id, functools.partial(run, dag, copy), folder=HOME, limit_s=limit_s)
    for path in HOME.glob(f"{dag.dag_id}.db*"):
        path.unlink()
    return found


def run(dag: Any, database: Path) -> Any:
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{database}"
    settings.configure_vars()
    settings.configure_orm()
    done = dag.test(logical_date=timezone.coerce_datetime(DATE))
    with create_session() as session:
        instances = done.get_task_instances(session=session)
        states = {one.task_id if one.map_index < 0 else f"{one.task_id}[{one.map_index}]": str(one.state) for one in instances}
    return {"state": str(done.state), "tasks": states}


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
