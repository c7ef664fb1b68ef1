"""Assets: what tasks update (`outlets`) and DAGs wait for (`schedule=[...]`, `a & b`, `a | b`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Asset:
    """A piece of data by its URI; nothing is read from there."""

    uri: str
    name: str = ""
    group: str = "asset"
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)
