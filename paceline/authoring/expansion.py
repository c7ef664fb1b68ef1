"""The expansion of a mapped task or group: the values of each instance, and where their number comes from."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.authoring.graph import Node
from paceline.authoring.source import fault
from paceline.authoring.xcom_arg import Step, XComArg, listed, results_in
from paceline.exceptions import DagError, XComError

Refuse = Callable[[str], DagError]


@dataclass(slots=True)
class Values:
    """The arguments of one instance; `results` are the results of tasks, which are never templates."""

    arguments: dict[str, Any] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)

    def take(self, name: str, value: Any, context: Mapping[str, Any], *, is_result: bool) -> None:
        """Add an argument, which may be the result of a task."""
        if isinstance(value, XComArg):
            value, is_result = value.resolve(context), True
        self.arguments[name] = value
        if is_result:
            self.results.append(value)


class Expansion:
    """The way in which a mapped task or group gets its arguments."""

    #: Why no mapped task or group can be inside the group.
    inside: ClassVar[str] = "is in the mapped group {!r} and cannot be mapped again"
    #: The arguments that are expanded, as their author wrote them.
    inputs: Any
    _kind: ClassVar[str] = "product"
    _refs: list[dict[str, Any]]

    def spec(self) -> dict[str, Any]:
        """The expansion as data, see SerializedTask.expand."""
        return {"kind": self._kind, "inputs": self._refs}

    def results(self) -> Iterator[XComArg]:
        """The task results that it reads."""
        yield from results_in(self.inputs)

    def values(self, context: Mapping[str, Any], map_index: int) -> Values:
        """The arguments of instance `map_index`."""
        raise NotImplementedError


class Product(Expansion):
    """`.expand(a=..., b=...)`: one instance for each combination of the values; the last argument varies fastest."""

    def __init__(self, inputs: Mapping[str, Any], refuse: Refuse) -> None:
        if not inputs:
            raise refuse("expand() has nothing to expand over; give it at least one argument.")
        for name, value in inputs.items():
            if not isinstance(value, list | tuple | Mapping | XComArg):
                kind = type(value).__name__
                raise refuse(f"expand({name}=...) takes a list, a dict or the result of a task, not {value!r} ({kind}).")
            if isinstance(value, MappedArgument):
                raise refuse(f"expand({name}=...) cannot take an argument of a mapped group; mapping does not nest.")
        self.inputs = dict(inputs)
        self._refs = [_ref(value) for value in inputs.values()]

    def values(self, context: Mapping[str, Any], map_index: int) -> Values:
        values = Values()
        rest = map_index
        first = next(iter(self.inputs))
        for name, value in reversed(self.inputs.items()):
            entries = value.entries(context) if isinstance(value, XComArg) else listed(value, name)
            place = rest
            if name != first:
                # A length can cost a query; the argument that varies slowest does not need it.
                rest, place = divmod(rest, _counted(entries, name))
            values.take(name, entries[place], context, is_result=isinstance(value, XComArg))
        return values


class Entries(Expansion):
    """`.expand_kwargs([{...}, ...])`: a dict of arguments for each instance."""

    _kind = "list"

    def __init__(self, inputs: Any, refuse: Refuse) -> None:
        if isinstance(inputs, MappedArgument):
            raise refuse("expand_kwargs() cannot take an argument of a mapped group; mapping does not nest.")
        if not isinstance(inputs, XComArg):
            if not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):
                raise refuse(f"expand_kwargs() takes a list of dicts or the result of a task, not {inputs!r}.")
            for entry in inputs:
                if isinstance(entry, XComArg):
                    continue
                if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
                    raise refuse(f"expand_kwargs() takes a list of dicts with str keys, but {entry!r} is in it.")
        self.inputs: XComArg | Sequence[Any] = inputs
        self._refs = [_ref(inputs)]

    @property
    def literals(self) -> list[Mapping[str, Any]]:
        """The dicts that are written in the DAG file."""
        return [] if isinstance(self.inputs, XComArg) else [entry for entry in self.inputs if isinstance(entry, Mapping)]

    def names(self) -> set[str]:
        """The argument names that are known when the DAG file is parsed."""
        return {name for entry in self.literals for name in entry}

    def values(self, context: Mapping[str, Any], map_index: int) -> Values:
        entries = self.inputs.entries(context) if isinstance(self.inputs, XComArg) else self.inputs
        entry = entries[map_index]
        is_result = isinstance(self.inputs, XComArg) or isinstance(entry, XComArg)
        if isinstance(entry, XComArg):
            entry = entry.resolve(context)
        if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
            raise XComError(f"expand_kwargs() got {entry!r} for map index {map_index}; it takes a dict with str keys.")
        values = Values()
        for name, value in entry.items():
            values.take(name, value, context, is_result=is_result)
        return values


class MappedArgument(XComArg):
    """An argument of a mapped group, used inside the group. Each instance has its own value."""

    __slots__ = ("expansion", "name")

    def __init__(self, expansion: Expansion, name: str) -> None:
        self.expansion = expansion
        self.name = name

    @property
    def leaves(self) -> Sequence[Node]:
        return list(dict.fromkeys(operator for result in self.expansion.results() for operator in result.leaves))

    def __getitem__(self, item: Step | list[str]) -> XComArg:
        raise fault(f"The argument {self.name!r} of a mapped group takes no subscript; pass it to a task that does [{item!r}].")

    def __str__(self) -> str:
        raise fault(f"The argument {self.name!r} of a mapped group cannot be part of a string; pass it as a separate argument.")

    def _shown(self) -> str:
        return f"argument {self.name!r} of a mapped group"

    def length_ref(self) -> dict[str, Any]:
        raise fault(f"The argument {self.name!r} of a mapped group cannot be mapped over; mapping does not nest.")

    def resolve(self, context: Mapping[str, Any]) -> Any:
        arguments = self.expansion.values(context, context["ti"].map_index).arguments
        if self.name not in arguments:
            raise XComError(f"expand_kwargs() gave no {self.name!r} for map index {context['ti'].map_index}.")
        return arguments[self.name]


def refuse_unnamed(unnamed: Collection[Any], names: Iterable[str], refuse: Refuse) -> None:
    """Reject values in expand() without the name of their argument; `names` are the names that it may have."""
    if unnamed:
        name = next(iter(names), "name")
        raise refuse(f"expand() takes each list by the name of its argument: write expand({name}=...).")


def refuse_repeated(names: Iterable[str], given: Collection[str], refuse: Refuse) -> None:
    """Reject an argument that is both in partial() and in expand()."""
    for name in names:
        if name in given:
            raise refuse(f"the argument {name!r} is in partial() already; remove it from one of the two.")


def _ref(value: Any) -> dict[str, Any]:
    return value.length_ref() if isinstance(value, XComArg) else {"literal": len(value)}


def _counted(entries: Sequence[Any], name: str) -> int:
    if not (length := len(entries)):
        raise XComError(f"There are no values for {name!r}: the list that it was expanded over is now empty.")
    return length
