"""The parts of the bench by name: each is the function `measure` of its module, which returns its piece of the JSON."""

import importlib
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from bench import shapes, throughput
from bench.options import Options, Piece

#: Shapes are not listed here, because the chosen ones share one stack.
PARTS = (
    "raw", "hop", "by_message", "children", "history", "churn", "fanin", "creation", "first", "schedulers", "parse", "idle",
    "standing", "open_runs", "waits", "memory", "code", "connections", "telemetry", "events", "spark", "frames", "tables",
)  # fmt: skip
#: The modules of parts that have another name than their part.
MODULES = {"raw": "baseline", "tables": "tables.part"}
#: The key of the result with the parts that failed.
FAILED = "failed"


def names() -> list[str]:
    """The names that `python -m bench` accepts, in the order in which they are measured."""
    first, *others = PARTS
    return [first, *shapes.full(), *others]


def measure(chosen: list[str], options: Options) -> Piece:
    """Measure the chosen parts, and merge their pieces. Those that failed are in `failed` with their errors."""
    result: Piece = {}
    wanted = [name for name in shapes.full() if name in chosen]
    for part in PARTS:
        if part in chosen:
            options.say(f"--- {part}")
            merge(result, attempt(part, _function(part), options))
        if part == PARTS[0] and wanted:
            merge(result, attempt("shapes", lambda options: throughput.measure(wanted, options), options))
    return result


def attempt(part: str, function: Callable[[Options], Piece], options: Options) -> Piece:
    """The piece of a part. After an hour, the other parts must not be lost because one has failed."""
    try:
        return function(options)
    except Exception as error:
        options.say(traceback.format_exc())
        return {FAILED: {part: f"{type(error).__name__}: {error}"}}


def merge(into: Piece, piece: Mapping[str, Any]) -> None:
    """Add a piece; where both have a dict, its keys."""
    for key, value in piece.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def _function(part: str) -> Callable[[Options], Piece]:
    function: Callable[[Options], Piece] = importlib.import_module(f"bench.{MODULES.get(part, part)}").measure
    return function
