"""The part `tables`: three pieces, each by itself, because not every machine has what the pieces on Spark need."""

from collections.abc import Callable
from functools import partial
from typing import Any

from bench import parts
from bench.options import Options, Piece
from bench.tables import publish, small_tasks, tpch_dag
from bench.tables.needs import MissingError

PIECES: dict[str, Callable[[Options], dict[str, Any]]] = {
    "publish": publish.measure,
    "tpch": tpch_dag.measure,
    "small": small_tasks.measure,
}


def measure(options: Options) -> Piece:
    """`tables`, by piece. A piece that lacks something is in `failed`, with the sentence that says what to do."""
    result: Piece = {"tables": {}}
    for name in PIECES:
        options.say(f"--- tables: {name}")
        parts.merge(result, parts.attempt(f"tables: {name}", partial(_piece, name), options))
    return result


def _piece(name: str, options: Options) -> Piece:
    try:
        return {"tables": {name: PIECES[name](options)}}
    except MissingError as missing:
        return {parts.FAILED: {f"tables: {name}": str(missing)}}
