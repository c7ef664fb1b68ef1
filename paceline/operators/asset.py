"""`@asset`: a function that updates one asset, as a DAG with one task."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from paceline.authoring import context as task_context
from paceline.authoring.asset import Asset, AssetAll, AssetRef
from paceline.authoring.dag import DAG
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
