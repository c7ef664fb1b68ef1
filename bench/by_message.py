"""The part `by_message`: shapes with in-place follow off, so that each task takes a message."""

from bench import throughput
from bench.options import Options, Piece

SHAPES = ("chain", "wide", "tree", "many")
ENVIRONMENT = {"PACELINE_WORKER_IN_PLACE_SECONDS": "0"}


def measure(options: Options) -> Piece:
    """`by_message`: the figures of these shapes. A task that takes longer than the budget of in-place follow costs as much."""
    return {"by_message": throughput.measure(SHAPES, options, ENVIRONMENT)["shapes"]}
