"""The result of a task as a value in the DAG file: passing it on makes the edge, the worker puts the real value in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from scheduler.authoring.edges import Linkable
from scheduler.authoring.source import fault
from scheduler.exceptions import XComError

if TYPE_CHECKING:
    from scheduler.authoring.operator import Operator

RETURN_KEY = "return_value"
_MISSING: Any = object()


class XComArg(Linkable):
    """What `operator` will have pushed under `key`, followed down `path` (`result["rows"][0]`)."""

    __slots__ = ("key", "operator", "path")

    def __init__(self, operator: Operator, key: str = RETURN_KEY, path: tuple[str | int, ...] = ()) -> None:
        self.operator = operator
        self.key = key
        self.path = path

    def linked_operator(self) -> Operator:
        return self.operator

    def __getitem__(self, item: str | int) -> XComArg:
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise fault(f"The result of task {self.operator.task_id!r} takes a str or int subscript, not {item!r}.")
        return XComArg(self.operator, self.key, (*self.path, item))

    def __iter__(self) -> NoReturn:
        raise fault(
            f"The result of task {self.operator.task_id!r} is known only after it has run, so the DAG file cannot "
            "loop over it; loop inside the task that receives it."
        )

    def __contains__(self, item: object) -> NoReturn:
        self.__iter__()

    def __repr__(self) -> str:
        return f"XComArg({self._shown()})"

    def __str__(self) -> str:
        """The same value as a template, so that a result may stand in an f-string (which makes no edge)."""
        path = "".join(f"[{item!r}]" for item in self.path)
        return f"{{{{ ti.xcom_pull(task_ids={self.operator.task_id!r}, key={self.key!r}){path} }}}}"

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """The value, from `context["ti"]`; a missing return value is None, any other missing key an XComError."""
        pull = context["ti"].xcom_pull
        task_id = self.operator.task_id
        path = self.path
        if self.key == RETURN_KEY and path and isinstance(path[0], str):
            # A key of its own first: pushed with multiple_outputs, or by hand as `ti.xcom_push(key, ...)`.
            value = pull(task_ids=task_id, key=path[0], default=_MISSING)
            if value is not _MISSING:
                return self._follow(value, path[1:])
        value = pull(task_ids=task_id, key=self.key, default=_MISSING)
        if value is _MISSING:
            if self.key == RETURN_KEY and not path:
                return None
            raise XComError(f"Task {task_id!r} has pushed no XCom for {self._shown()}.")
        return self._follow(value, path)

    def _follow(self, value: Any, path: tuple[str | int, ...]) -> Any:
        for item in path:
            try:
                value = value[item]
            except (LookupError, TypeError):
                raise XComError(f"{self._shown()} does not exist: {item!r} is not in a {type(value).__name__}.") from None
        return value

    def _shown(self) -> str:
        key = "" if self.key == RETURN_KEY else f", key {self.key!r}"
        return f"result of {self.operator.task_id!r}{key}" + "".join(f"[{item!r}]" for item in self.path)


def results_in(value: object) -> Iterator[XComArg]:
    """Every task result inside `value`, however deep in lists, tuples, sets and dicts."""
    if isinstance(value, XComArg):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from results_in(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from results_in(item)
