"""The arguments of operators and DAGs: their names, their defaults, and the creation of an operator from them."""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from scheduler.authoring import source
from scheduler.authoring.arguments import ACCEPTED, RENAMED, Arguments
from scheduler.authoring.graph import Graph, Group

#: The argument of tasks in RENAMED; the others are those of DAGs.
_RENAMED = {"task_concurrency": RENAMED["task_concurrency"]}


@cache
def parameters(kind: type) -> tuple[str, ...]:
    """Every argument of `kind`: its own and, if it takes **kwargs, those of its base classes."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        own = base.__dict__.get("__init__")
        signature = () if own is None else inspect.signature(own).parameters.values()
        names |= {p.name: None for p in signature if p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD}}
        if "declared" in base.__dict__:  # declared in a TypedDict, and passed as **kwargs
            names |= dict.fromkeys(base.__dict__["declared"].__annotations__)
        if own is not None and not any(p.kind is p.VAR_KEYWORD for p in signature):
            break
    names.pop("self", None)
    return tuple(names)


def construct(kind: type, at: source.Location, arguments: Mapping[str, Any]) -> Any:
    """Create an operator without adding it to a DAG."""
    new: Any = kind
    task = new.__new__(new)
    task.at = at
    task.__init__(**arguments)
    return task


@cache
def required(kind: type) -> tuple[str, ...]:
    own = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    return tuple(p.name for p in own if p.default is p.empty and p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD})


def with_defaults(
    kind: type, kwargs: Mapping[str, Any], *, dag: Graph[Any] | None, group: Group | None, checks: Arguments
) -> dict[str, Any]:
    """`kwargs`, completed by the default_args of the task, else of its groups, else of its DAG."""
    defaults = (dict(dag.default_args) if dag is not None else {}) | (group.default_args if group is not None else {})
    own = kwargs.get("default_args")
    if own is not None:
        defaults |= checks.mapping("default_args", own)
    known = parameters(kind)
    if ACCEPTED and "task_concurrency" not in known:
        # In unchanged files for Airflow 2.
        defaults, kwargs = ({_RENAMED.get(name, name): value for name, value in each.items()} for each in (defaults, kwargs))
    return {name: value for name, value in defaults.items() if name in known and name != "task_id"} | dict(kwargs)
