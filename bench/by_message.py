"""The part `by_message`: shapes with in-place follow off, so that each task takes a message."""

from bench import shapes, throughput
from bench.options import Options, Piece
from bench.stack import Stack

SHAPES = ("chain", "wide", "tree", "many")
ENVIRONMENT = {"PACELINE_WORKER_IN_PLACE_SECONDS": "0"}


def measure(options: Options) -> Piece:
    """`by_message`: the figures of these shapes. A task that takes longer than the budget of in-place follow costs as much."""
    known = shapes.small() if options.small else shapes.full()
    wanted = [known[name] for name in SHAPES]
    with Stack({name: text for shape in wanted for name, text in shape.files.items()}, environment=ENVIRONMENT) as stack:
        _, found = throughput.on_stack(stack, wanted, options)
    return {"by_message": found}
