"""The result of a task as a value in the DAG file. Using it adds an edge; the worker replaces it by the real value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, overload

from paceline.authoring import scope, source
from paceline.authoring.graph import Node
from paceline.authoring.setup_teardown import Markable
from paceline.authoring.source import fault
from paceline.authoring.xcom import RETURN_KEY
from paceline.exceptions import XComError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Passed as an argument, it stands for a value of any type. For Any as a base class, see PEP 484.
    _AnyValue = Any
    #: The type of the value, which paceline/testing/mypy_plugin compares with that of a parameter.
    T_co = TypeVar("T_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

    class _AnyValue:
        __slots__ = ()


_MISSING: Any = object()
#: The key or number of a part of a result, or columns of a DataFrame.
Step = str | int | tuple[str, ...]


class XComArg(Markable, _AnyValue, Generic[T_co]):  # type: ignore[misc]
    """The future result of a task: the XCom that `operator` pushes under `key`, or the part of it at `path`.

    `result["rows"][0]` has the path ("rows", 0), and `result[["day", "amount"]]`, two columns of a DataFrame, (("day", "amount"),).
    Use it in template fields and arguments of @task functions, or map over it. The DAG file cannot loop over it, because the value
    is known only at run time.
    """

    __slots__ = ("key", "operator", "path")

    def __init__(self, operator: Node, key: str = RETURN_KEY, path: tuple[Step, ...] = ()) -> None:
        self.operator = operator
        self.key = key
        self.path = path

    @property
    def roots(self) -> Sequence[Node]:
        return self.leaves

    @property
    def leaves(self) -> Sequence[Node]:
        return (self.operator,)

    def map(self, function: Callable[[Any], Any]) -> XComArg:
        """The result with a plain function applied to each entry. If that raises SkipTask, the instance is skipped."""
        return MappedResult(self, function)

    def zip(self, *others: XComArg, fillvalue: Any = _MISSING) -> XComArg:
        """Tuples of the entries of this result and others: as many as the shortest has, or with `fillvalue` the longest."""
        return ZippedResult((self, *others), () if fillvalue is _MISSING else (fillvalue,))

    def concat(self, *others: XComArg) -> XComArg:
        """The entries of this result, followed by the entries of the others."""
        return JoinedResult((self, *others))

    @property
    def _marked(self) -> Node:
        return self.operator

    def __getitem__(self, item: Step | list[str]) -> XComArg:
        if isinstance(item, list | tuple) and item and all(isinstance(name, str) for name in item):
            item = tuple(item)
        elif isinstance(item, bool) or not isinstance(item, str | int):
            raise fault(
                f"The result of task {self.operator.task_id!r} takes a str or int subscript, or a list of columns, not {item!r}."
            )
        return XComArg(self.operator, self.key, (*self.path, item))

    def __iter__(self) -> NoReturn:
        raise fault(
            f"The result of task {self.operator.task_id!r} is known only after it has run, so the DAG file cannot "
            "loop over it; loop inside the task that receives it."
        )

    def __bool__(self) -> bool:
        scope.defer_first_of_line(
            fault(
                f"The {self._shown()} is known only after it has run, so the DAG file cannot test it; decide in a @task.branch or "
                "@task.short_circuit, or write `is not None` to ask whether there is a task."
            )
        )
        return True

    def __contains__(self, item: object) -> NoReturn:
        self.__iter__()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str | int | float | list | tuple | dict) and scope.is_deferring() and source.is_called_from_outside():
            scope.defer_first_of_line(
                fault(
                    f"The {self._shown()} is known only after it has run, so the DAG file cannot compare it with {other!r}; "
                    "decide in a @task.branch or @task.short_circuit."
                )
            )
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"XComArg({self._shown()})"

    def __str__(self) -> str:
        """The result as a template, so that it can be used in an f-string (which adds no edge)."""
        path = "".join(f"[{item!r}]" for item in self.path)
        return f"{{{{ ti.xcom_pull(task_ids={self.operator.task_id!r}, key={self.key!r}){path} }}}}"

    def length_ref(self) -> dict[str, Any]:
        """The source of its length, see deciding/expansion."""
        if len(self.path) > 1 or (self.path and (self.key != RETURN_KEY or not isinstance(self.path[0], str))):
            raise fault(f"The {self._shown()} cannot be mapped over; only a whole result or one key of it can.")
        return {"task": self.operator.task_id, "key": self.path[0] if self.path else self.key}

    def entries(self, context: Mapping[str, Any]) -> Sequence[Any]:
        """The entries to expand over; only those that are used are read from the database."""
        ref = self.length_ref()
        entries: Sequence[Any] = context["ti"].xcom_entries(ref["task"], ref["key"])
        return entries

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """The value at run time; None for a missing return value, XComError for any other missing key."""
        pull = context["ti"].xcom_pull
        task_id = self.operator.task_id
        path = self.path
        if self.key == RETURN_KEY and path and isinstance(path[0], str):
            # An XCom with that key comes first, from multiple_outputs or from `ti.xcom_push(key, ...)`.
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
        """Whether the result is a list with the results of all instances of a mapped task."""
        if self.operator.expand_spec is None:
            return False
        group = self.operator.mapped_group_id
        return group is None or context["task"].mapped_group_id != group

    def _each(self, value: Any, path: tuple[Step, ...], context: Mapping[str, Any]) -> Any:
        return [self._follow(item, path) for item in value] if path and self._is_many(context) else self._follow(value, path)

    def _follow(self, value: Any, path: tuple[Step, ...]) -> Any:
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
    """Every task result inside `value`, at any depth of lists, tuples, sets and dicts."""
    return (one for one in entries_in(value) if isinstance(one, XComArg))


def entries_in(value: object) -> Iterator[object]:
    """Every value inside lists, tuples, sets and dicts, at any depth; `value` itself if it is none of these."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from entries_in(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from entries_in(item)
    else:
        yield value


class CombinedResult(XComArg):
    """A value made from the results of one or more tasks."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[XComArg]) -> None:
        for part in parts:
            if not isinstance(part, XComArg):
                raise fault(f"Only results of tasks can be joined, not {part!r} ({type(part).__name__}).")
        self.parts = tuple(parts)

    @property
    def leaves(self) -> Sequence[Node]:
        return list(dict.fromkeys(operator for part in self.parts for operator in part.leaves))

    def __getitem__(self, item: Step | list[str]) -> XComArg:
        raise fault(f"{self!r} takes no subscript; use .map(lambda entry: entry[{item!r}]).")

    def __str__(self) -> str:
        raise fault(f"{self!r} cannot be part of a string; pass it as a separate argument.")

    def _shown(self) -> str:
        return ", ".join(part._shown() for part in self.parts)


class MappedResult(CombinedResult):
    """A result with a function applied to each entry."""

    __slots__ = ("function",)

    def __init__(self, part: XComArg, function: Callable[[Any], Any]) -> None:
        super().__init__((part,))
        # A function with @task is callable too, and would create a task for each entry.
        if not callable(function) or hasattr(function, "expand_kwargs"):
            raise fault(f"map() takes a plain function, not {function!r}; to run a task for each entry use .expand().")
        self.function = function

    def length_ref(self) -> dict[str, Any]:
        return self.parts[0].length_ref()

    def entries(self, context: Mapping[str, Any]) -> Sequence[Any]:
        entries = self.parts[0].entries(context)
        return Entries(lambda: len(entries), lambda place: self.function(entries[place]))

    def resolve(self, context: Mapping[str, Any]) -> Any:
        return [self.function(entry) for entry in listed(self.parts[0].resolve(context), self.parts[0])]


class ZippedResult(CombinedResult):
    """Tuples of the entries of several results; `fill` holds the fill value, or is empty to end with the shortest."""

    __slots__ = ("fill",)

    def __init__(self, parts: Sequence[XComArg], fill: tuple[Any, ...] = ()) -> None:
        super().__init__(parts)
        self.fill = fill

    def length_ref(self) -> dict[str, Any]:
        return {"zip": [part.length_ref() for part in self.parts], "longest": bool(self.fill)}

    def entries(self, context: Mapping[str, Any]) -> Sequence[Any]:
        parts = [part.entries(context) for part in self.parts]

        def tuple_at(place: int) -> tuple[Any, ...]:
            return tuple(part[place] if not self.fill or place < len(part) else self.fill[0] for part in parts)

        return Entries(lambda: (max if self.fill else min)(len(part) for part in parts), tuple_at)

    def resolve(self, context: Mapping[str, Any]) -> Any:
        parts = [listed(part.resolve(context), part) for part in self.parts]
        return list(itertools.zip_longest(*parts, fillvalue=self.fill[0]) if self.fill else zip(*parts, strict=False))


class JoinedResult(CombinedResult):
    """The entries of several results, one result after the other."""

    __slots__ = ()

    def length_ref(self) -> dict[str, Any]:
        return {"concat": [part.length_ref() for part in self.parts]}

    def entries(self, context: Mapping[str, Any]) -> Sequence[Any]:
        parts = [part.entries(context) for part in self.parts]

        def entry_at(place: int) -> Any:
            for part in parts[:-1]:
                if place < len(part):
                    return part[place]
                place -= len(part)
            return parts[-1][place]

        return Entries(lambda: sum(len(part) for part in parts), entry_at)

    def resolve(self, context: Mapping[str, Any]) -> Any:
        return [entry for part in self.parts for entry in listed(part.resolve(context), part)]


class Entries(Sequence[Any]):
    """A lazy sequence: its length and entries are read when they are used."""

    def __init__(self, length: Callable[[], int], entry: Callable[[int], Any]) -> None:
        self._length = length
        self._entry = entry

    def __len__(self) -> int:
        return self._length()

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        return self._entry(place)


def listed(value: Any, where: object) -> Sequence[Any]:
    """A list as it is, a dict as its (key, value) pairs; XComError for a value that cannot be mapped over."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return value
    raise XComError(f"{where} is a {type(value).__name__}; only a list or a dict can be mapped over.")
