"""Results made of other results: `.map()`, `.zip()` and `.concat()`, whole or entry by entry."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from scheduler.authoring.source import fault
from scheduler.authoring.xcom_arg import XComArg
from scheduler.exceptions import XComError

if TYPE_CHECKING:
    from scheduler.authoring.operator import Operator


class CombinedResult(XComArg):
    """What can be passed on as a result but belongs to no single task."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[XComArg]) -> None:
        for part in parts:
            if not isinstance(part, XComArg):
                raise fault(f"Only results of tasks can be joined, not {part!r} ({type(part).__name__}).")
        self.parts = tuple(parts)

    def leaves(self) -> Sequence[Operator]:
        return list(dict.fromkeys(operator for part in self.parts for operator in part.leaves()))

    def __getitem__(self, item: str | int) -> XComArg:
        raise fault(f"{self!r} takes no subscript; use .map(lambda entry: entry[{item!r}]).")

    def __str__(self) -> str:
        raise fault(f"{self!r} cannot stand in a text; pass it as an argument of its own.")

    def _shown(self) -> str:
        return ", ".join(part._shown() for part in self.parts)


class MappedResult(CombinedResult):
    """Each entry of one result through a function."""

    __slots__ = ("function",)

    def __init__(self, part: XComArg, function: Callable[[Any], Any]) -> None:
        super().__init__((part,))
        # The decorated functions of operators/decorators wrap the function that they make tasks of.
        if not callable(function) or hasattr(function, "expand_kwargs"):
            raise fault(f"map() takes a plain function, not {function!r}; to run a task for each entry use .expand().")
        self.function = function

    def length_ref(self) -> dict[str, Any]:
        return self.parts[0].length_ref()

    def entries(self, context: Mapping[str, Any]) -> Sequence[Any]:
        found = self.parts[0].entries(context)
        return Entries(lambda: len(found), lambda place: self.function(found[place]))

    def resolve(self, context: Mapping[str, Any]) -> Any:
        return [self.function(entry) for entry in listed(self.parts[0].resolve(context), self.parts[0])]


class ZippedResult(CombinedResult):
    """Tuples of entries; `fill` holds the fill value, or nothing to end with the shortest."""

    __slots__ = ("fill",)

    def __init__(self, parts: Sequence[XComArg], fill: tuple[Any, ...] = ()) -> None:
        super().__init__(parts)
        self.fill = fill

    def length_ref(self) -> dict[str, Any]:
        return {"zip": [part.length_ref() for part in self.parts], "longest": bool(self.fill)}

    def entries(self, context: Mapping[str, Any]) -> Sequence[Any]:
        found = [part.entries(context) for part in self.parts]

        def tuple_at(place: int) -> tuple[Any, ...]:
            return tuple(one[place] if not self.fill or place < len(one) else self.fill[0] for one in found)

        return Entries(lambda: (max if self.fill else min)(len(one) for one in found), tuple_at)

    def resolve(self, context: Mapping[str, Any]) -> Any:
        found = [listed(part.resolve(context), part) for part in self.parts]
        return list(itertools.zip_longest(*found, fillvalue=self.fill[0]) if self.fill else zip(*found, strict=False))


class JoinedResult(CombinedResult):
    """One result after the other."""

    __slots__ = ()

    def length_ref(self) -> dict[str, Any]:
        return {"concat": [part.length_ref() for part in self.parts]}

    def entries(self, context: Mapping[str, Any]) -> Sequence[Any]:
        found = [part.entries(context) for part in self.parts]

        def entry_at(place: int) -> Any:
            for one in found[:-1]:
                if place < len(one):
                    return one[place]
                place -= len(one)
            return found[-1][place]

        return Entries(lambda: sum(len(one) for one in found), entry_at)

    def resolve(self, context: Mapping[str, Any]) -> Any:
        return [entry for part in self.parts for entry in listed(part.resolve(context), part)]


class Entries(Sequence[Any]):
    """A sequence whose length and entries are asked for when they are used."""

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
            return [self[one] for one in range(*place.indices(len(self)))]
        return self._entry(place)


def listed(value: Any, where: object) -> Sequence[Any]:
    """A list as it is, a dict as its (key, value) pairs; XComError for what cannot be mapped over."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return value
    raise XComError(f"{where} is a {type(value).__name__}; only a list or a dict can be mapped over.")
