"""The DAGs of asset watchers: each one runs all the time, and updates its asset whenever its trigger fires."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

from paceline.authoring.arguments import ID_MAX_LENGTH
from paceline.authoring.asset import Asset, AssetWatcher
from paceline.authoring.dag import DAG
from paceline.authoring.operator import Operator
from paceline.authoring.task_arguments import TaskArguments

TASK_ID = "watch"
TAG = "asset-watcher"
#: A trigger that fails is started again after this time, and its run fails after this many tries.
RETRIES, RETRY_DELAY = 100, timedelta(seconds=30)


class AssetWatchOperator(Operator):
    """Waits for a trigger without a worker, then updates its only outlet. The extra of the event has the trigger's `payload`."""

    def __init__(self, *, trigger: Any, **kwargs: Unpack[TaskArguments]) -> None:
        super().__init__(**kwargs)
        self.trigger = trigger

    def execute(self, context: Mapping[str, Any]) -> None:
        self.defer(trigger=self.trigger, method_name="update")

    def update(self, context: Mapping[str, Any], event: Any = None) -> None:
        """Continue after the trigger has fired."""
        context["outlet_events"][self.outlets[0]].extra = {"from_trigger": True, "payload": event}


def watching_dags(dags: Iterable[DAG]) -> dict[str, DAG]:
    """A DAG by its ID for each watcher of the assets in the schedules of `dags`."""
    watching: dict[str, DAG] = {}
    for dag in dags:
        assets = dag.timetable.condition.assets() if dag.timetable.condition is not None else ()
        for asset in (one for one in assets if isinstance(one, Asset)):
            for watcher in asset.watchers:
                dag_id = watch_id(asset, watcher)
                if dag_id not in watching:
                    watching[dag_id] = _dag(dag_id, dag, asset, watcher)
    return watching


def watch_id(asset: Asset, watcher: AssetWatcher) -> str:
    """The ID of the DAG of a watcher. It does not depend on the file, so that two files cannot watch for the same update."""
    words = (re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("_") for text in (asset.name, watcher.name))
    return "__".join(("watch", *words))[:ID_MAX_LENGTH]


def _dag(dag_id: str, author: DAG, asset: Asset, watcher: AssetWatcher) -> DAG:
    dag = DAG(
        dag_id, schedule="@continuous", start_date=datetime(2020, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1,
        is_paused_upon_creation=False, tags=[TAG],
        description=f"Updates asset {asset.name} whenever {type(watcher.trigger).__name__} of watcher {watcher.name} fires.",
    )  # fmt: skip
    dag.at = author.at
    AssetWatchOperator(task_id=TASK_ID, dag=dag, trigger=watcher.trigger, outlets=[asset], retries=RETRIES, retry_delay=RETRY_DELAY)
    return dag
