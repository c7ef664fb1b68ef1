"""`@asset`: a function that updates one asset, as a DAG with one task."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Unpack

from paceline.authoring import context as task_context
from paceline.authoring.arguments import ID_MAX_LENGTH
from paceline.authoring.asset import Asset, AssetAll, AssetRef, AssetWatcher
from paceline.authoring.dag import DAG
from paceline.authoring.operator import Operator
from paceline.authoring.task_arguments import TaskArguments
from paceline.operators.python import PythonOperator

_OURS = frozenset({"self", "context"})
_KNOWN = task_context.KEYS | _OURS


class AssetOperator(PythonOperator):
    """Calls the function of an `@asset`. Its parameter `self` receives the asset, `context` all context variables.

    A parameter with the name of a context variable receives it. Any other one without a default names an asset that the
    function reads: an inlet of the task. It receives the Asset.
    """

    reserved: ClassVar[frozenset[str]] = _OURS

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Unpack[TaskArguments]) -> None:
        inputs = _inputs(python_callable)
        self.injected = _KNOWN.union(inputs)
        kwargs["inlets"] = [AssetRef(name) for name in inputs]
        super().__init__(python_callable=python_callable, **kwargs)

    def call(self, context: Mapping[str, Any]) -> Any:
        inputs = {asset.name: asset for asset in context.get("inlets", ())}
        return super().call({**inputs, **context, "self": self.outlets[0], "context": context})


class AssetDecorator:
    """`@asset` and `@asset.multi`: decorate the function that updates assets. It becomes the only task of a DAG."""

    def __call__(
        self,
        *,
        schedule: Any,
        name: str | None = None,
        uri: str | None = None,
        group: str = "asset",
        extra: Mapping[str, Any] | None = None,
        dag_id: str | None = None,
        **dag_arguments: Any,
    ) -> Callable[[Callable[..., Any]], Asset]:
        """Decorate the function that updates one asset. The decorated name is the Asset.

        The task and by default the asset have the name of the function, and the DAG by default that of the asset.
        `dag_arguments` are further arguments of DAG. A parameter of the function that is neither `self`, `context` nor a
        context variable, and has no default, is the name of an asset that it reads.
        """

        def make(function: Callable[..., Any]) -> Asset:
            outlet = Asset(name=name or function.__name__, uri=uri, group=group, extra=extra)
            with DAG(dag_id or outlet.name, **{"schedule": schedule, "doc_md": function.__doc__, **dag_arguments}):
                _make_task(function, [outlet])
            return outlet

        return make

    def multi(
        self, *, schedule: Any, outlets: Sequence[Asset], name: str | None = None, dag_id: str | None = None, **dag_arguments: Any
    ) -> Callable[[Callable[..., Any]], AssetAll]:
        """Decorate the function that updates all of `outlets`. The decorated name is the condition that all are updated."""

        def make(function: Callable[..., Any]) -> AssetAll:
            with DAG(dag_id or name or function.__name__, **{"schedule": schedule, "doc_md": function.__doc__, **dag_arguments}):
                _make_task(function, list(outlets))
            return AssetAll(*outlets)

        return make


asset = AssetDecorator()


def _make_task(function: Any, outlets: list[Asset]) -> None:
    """The task of the DAG. The function may have a @task decorator with its own arguments."""
    if hasattr(function, "override"):
        function.override(outlets=outlets)()
    else:
        AssetOperator(task_id=function.__name__, python_callable=function, outlets=outlets)


def _inputs(function: Callable[..., Any]) -> list[str]:
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.name not in _KNOWN and p.default is p.empty and p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}
    ]


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
        for asset in (given for given in assets if isinstance(given, Asset)):
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
