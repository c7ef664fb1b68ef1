"""Sequences to map over: lists, the pairs of a dict, and sequences that are read entry by entry."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from scheduler.exceptions import XComError


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
