"""The arguments and the result of a part of the bench."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: A piece of the JSON object at the end. Pieces are merged, dicts key by key.
Piece = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The thoroughness of a part. `small` is for smoke tests, which check counts and states but no times. `say` prints
    progress.
    """

    iterations: int = 3
    small: bool = False
    say: Callable[[str], None] = print
