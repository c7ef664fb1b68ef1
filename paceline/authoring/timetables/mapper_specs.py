"""Mappers, windows and policies as JSON, in the schedule of a stored DAG."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from paceline.authoring.timetables import mappers, temporal_mappers, windows

#: All classes that a spec can name. Schedulers load no others.
KINDS: Mapping[str, type[Any]] = {
    name: kind
    for module in (mappers, temporal_mappers, windows)
    for name, kind in vars(module).items()
    if isinstance(kind, type)
    and issubclass(kind, mappers.PartitionMapper | windows.Window | windows.WaitPolicy)
    and kind not in {mappers.PartitionMapper, windows.Window, windows.WaitPolicy}
}
#: The key in JSON that names the class.
KIND = "is"


def to_spec(value: Any) -> Any:
    """A mapper as JSON, which `from_spec` reads. TimetableError if it is, or holds, an object of an own subclass."""
    if isinstance(value, mappers.PartitionMapper | windows.Window | windows.WaitPolicy):
        name = type(value).__name__
        if KINDS.get(name) is not type(value):
            raise windows.refusal(
                f"{name} is a class of your own, and schedulers never run user code; compose the mappers and windows of Paceline."
            )
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
        return {KIND: name} | {field: to_spec(item) for field, item in fields.items() if item is not None}
    if isinstance(value, tuple):
        return [to_spec(item) for item in value]
    return str(value) if isinstance(value, windows.Direction) else value


def from_spec(spec: Mapping[str, Any]) -> Any:
    """The object that `to_spec` described."""
    fields = {name: _revived(value) for name, value in spec.items() if name != KIND}
    kind = KINDS[spec[KIND]]
    if issubclass(kind, mappers.ChainMapper | mappers.ProductMapper):
        return kind(*fields.pop("mappers"), **fields)
    if kind is windows.SegmentWindow:
        return kind(fields["segments"])
    return kind(**fields)


def _revived(value: Any) -> Any:
    if isinstance(value, dict):
        return from_spec(value)
    return [_revived(item) for item in value] if isinstance(value, list) else value
