"""What a part of the bench is called with, and what it gives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: A piece of the JSON object at the end; pieces are merged, dicts key by key.
Piece = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How thorough a part shall be. `small`: as small as a smoke test wants it, where counts and states matter and times do not.
    `say` takes a line for people."""

    iterations: int = 3
    small: bool = False
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        assert self.iterations >= 1
