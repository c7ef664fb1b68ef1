"""The result of a task as a value in the DAG file: passing it on makes the edge, the worker puts the real value in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from scheduler.authoring.edges import Linkable
from scheduler.authoring.source import fault
from scheduler.exceptions import XComError

if TYPE_CHECKING:
    from scheduler.authoring.operator import Operator
    from scheduler.authoring.setup_teardown import Block

RETURN_KEY = "return_value"
_MISSING: Any = object()


class XComArg(Linkable):
    """What `operator` will have pushed under `key`, followed down `path` (`result["rows"][0]`)."""

    __slots__ = ("key", "operator", "path")

    def __init__(self, operator: Operator, key: str = RETURN_KEY, path: tuple[str | int, ...] = ()) -> None:
        self.operator = operator
        self.key = key
        self.path = path

    def roots(self) -> Sequence[Operator]:
        return self.leaves()

    def leaves(self) -> Sequence[Operator]:
        return (self.operator,)

    def map(self, function: Callable[[Any], Any]) -> XComArg:
        """This result, with a plain function applied to each entry; if it raises SkipTask, that instance is skipped."""
        from scheduler.authoring.xcom_sequence import MappedResult

        return MappedResult(self, function)

    def zip(self, *others: XComArg, fillvalue: Any = _MISSING) -> XComArg:
        """Tuples of the entries of this result and others; as many as the shortest has, with `fillvalue` as the longest."""
        from scheduler.authoring.xcom_sequence import ZippedResult

        return ZippedResult((self, *others), () if fillvalue is _MISSING else (fillvalue,))

    def concat(self, *others: XComArg) -> XComArg:
        """The entries of this result, then those of the others."""
        from scheduler.authoring.xcom_sequence import JoinedResult

        return JoinedResult((self, *others))

    def as_setup(self) -> Self:
        """Make the task a setup, see Operator.as_setup."""
        self.operator.as_setup()
        return self

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> Self:
        """Make the task a teardown, see Operator.as_teardown."""
        self.operator.as_teardown(setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)
        return self

    def __enter__(self) -> Block:
        return self.operator.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.operator.__exit__(kind, error, trace)

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

    def length_ref(self) -> dict[str, Any]:
        """Where its length comes from, see deciding/expansion."""
        if len(self.path) > 1 or (self.path and (self.key != RETURN_KEY or not isinstance(self.path[0], str))):
            raise fault(f"The {self._shown()} cannot be mapped over; only a whole result or one key of it can.")
        return {"task": self.operator.task_id, "key": self.path[0] if self.path else self.key}

    def entries(self, context: Mapping[str, Any]) -> Sequence[Any]:
        """What an expansion takes its values from; only those that are used are read from the database."""
        ref = self.length_ref()
        found: Sequence[Any] = context["ti"].xcom_entries(ref["task"], ref["key"])
        return found

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """The value, from `context["ti"]`; a missing return value is None, any other missing key an XComError."""
        pull = context["ti"].xcom_pull
        task_id = self.operator.task_id
        path = self.path
        if self.key == RETURN_KEY and path and isinstance(path[0], str):
            # A key of its own first: pushed with multiple_outputs, or by hand as `ti.xcom_push(key, ...)`.
            value = pull(task_ids=task_id, key=path[0], default=_MISSING)
            if value is not _MISSING and not (self._is_many(context) and value == []):
                return self._each(value, path[1:], context)
        value = pull(task_ids=task_id, key=self.key, default=_MISSING)
        if value is _MISSING:
            if self.key == RETURN_KEY and not path:
                return None
            raise XComError(f"Task {task_id!r} has pushed no XCom for {self._shown()}.")
        return self._each(value, path, context)

    def _is_many(self, context: Mapping[str, Any]) -> bool:
        """Whether the result is the list of what all instances of a mapped task returned."""
        if self.operator.expand_spec is None:
            return False
        group = self.operator.mapped_group_id
        return group is None or context["task"].mapped_group_id != group

    def _each(self, value: Any, path: tuple[str | int, ...], context: Mapping[str, Any]) -> Any:
        return [self._follow(one, path) for one in value] if path and self._is_many(context) else self._follow(value, path)

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
