"""The arguments and the result of a part of the bench."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: A piece of the JSON object at the end. Pieces are merged, dicts key by key.
Piece = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The thoroughness of a part. `small` is for smoke tests, which check counts and states but no times. `say` prints
    progress. `instances` are the finished task instances of the parts about a long history.
    """

    iterations: int = 3
    small: bool = False
    instances: int = 1_000_000
    say: Callable[[str], None] = print
