"""`@asset`: a function that updates one asset, as a DAG with one task."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from scheduler.authoring import asset as assets
from scheduler.authoring import context as task_context
from scheduler.authoring.asset import Asset
from scheduler.authoring.dag import DAG
from scheduler.operators.python import PythonOperator

_OURS = frozenset({"self", "context"})


class AssetOperator(PythonOperator):
    """Calls the function of an `@asset`. Its parameter `self` receives the asset, `context` all context variables."""

    injected: ClassVar[frozenset[str]] = task_context.KEYS | _OURS
    reserved: ClassVar[frozenset[str]] = _OURS

    def call(self, context: Mapping[str, Any]) -> Any:
        return super().call({**context, "self": self.outlets[0], "context": context})


def asset(
    *,
    schedule: Any,
    name: str | None = None,
    uri: str | None = None,
    group: str = "asset",
    extra: Mapping[str, Any] | None = None,
    **dag_arguments: Any,
) -> Callable[[Callable[..., Any]], Asset]:
    """Decorate the function that updates an asset: it becomes the only task of a DAG. The decorated name is the Asset.

    The DAG, the task and by default the asset have the name of the function. `dag_arguments` are further arguments of DAG.
    """

    def make(function: Callable[..., Any]) -> Asset:
        outlet = assets.Asset(name=name or function.__name__, uri=uri, group=group, extra=extra)
        with DAG(function.__name__, **{"schedule": schedule, "doc_md": function.__doc__, **dag_arguments}):
            AssetOperator(task_id=function.__name__, python_callable=function, outlets=[outlet])
        return outlet

    return make
