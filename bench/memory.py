"""Memory of each process after its start, before any code of an author runs in it.

RSS counts a page in every process that maps it, PSS gives each its share. Children are forked, so PSS is what one more of them
costs; the goals are held against RSS, which is never less.
"""

from statistics import median

from bench import parse
from bench.parts import Options, Piece
from bench.stack import Stack

FILES = 10
MEASURES = ("rss", "pss")


def measure(options: Options) -> Piece:
    """`memory_mb`: RSS and PSS of the scheduler with its parser, of each of both, of a worker child and of the worker's parent."""
    with Stack(parse.files(FILES)) as stack:
        found = stack.memory_mb()
    sums = {role: {name: sum(one[name] for one in found[role]) for name in MEASURES} for role in ("scheduler", "parser")}
    result = {
        "scheduler_with_parser": {name: sums["scheduler"][name] + sums["parser"][name] for name in MEASURES},
        **sums,
        "worker": {name: found["worker"][0][name] for name in MEASURES},
        "worker_child": {name: median(one[name] for one in found["worker_children"]) for name in MEASURES},
    }
    for role, one in result.items():
        options.say(f"memory of {role}: RSS {one['rss']:.0f} MB, PSS {one['pss']:.0f} MB")
    return {"memory_mb": {role: {name: round(value, 1) for name, value in one.items()} for role, one in result.items()}}
