"""Memory of each process after its start, before any user code runs in it.

RSS counts a page in every process that maps it; PSS gives each process its share. Children are forked, so PSS is the cost of
one more of them. The goals are compared with RSS, which is never less.
"""

from statistics import median

from bench import parse
from bench.options import Options, Piece
from bench.stack import Stack

FILES = 10
READ = ("scheduler", "parser", "worker", "worker_children")


def measure(options: Options) -> Piece:
    """`memory_mb`: RSS, and PSS where it may be read: scheduler with its parser, each of both, the worker, a child of it."""
    with Stack(parse.files(FILES)) as stack:
        found = stack.memory_mb()
    measures = set.intersection(*(set(one) for role in READ for one in found[role]))
    sums = {role: {name: sum(one[name] for one in found[role]) for name in measures} for role in ("scheduler", "parser")}
    result = {
        "scheduler_with_parser": {name: sums["scheduler"][name] + sums["parser"][name] for name in measures},
        **sums,
        "worker": {name: found["worker"][0][name] for name in measures},
        "worker_child": {name: median(one[name] for one in found["worker_children"]) for name in measures},
    }
    for role, one in result.items():
        options.say(f"memory of {role}: {', '.join(f'{name.upper()} {one[name]:.0f} MB' for name in sorted(one, reverse=True))}")
    return {"memory_mb": {role: {name: round(value, 1) for name, value in one.items()} for role, one in result.items()}}
