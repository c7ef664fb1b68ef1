"""`python -m bench peers`: installs Airflow if it is missing, compares, and prints the table and finally one JSON object."""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers import compare, install, report
from bench.report import machine, say
from scheduler.embedded.stack import until_signalled


def main(arguments: Sequence[str]) -> int:
    """Compare. Returns 0 if every run on both systems succeeded (StackError otherwise), 1 after a signal to end."""
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    parser.add_argument("--airflow", type=Path, default=install.default_folder(), help=f"its environment; also ${install.VARIABLE}")
    parser.add_argument("--small", action="store_true", help="shapes of a few tasks: does it work?")
    parser.add_argument(
        "--block", type=int, action="append", choices=range(len(compare.BLOCKS)), help="only this block; repeatable"
    )
    parser.add_argument("--lock", type=Path, help="a file to hold during each block, for machines that others measure on too")
    parser.add_argument("--keep", action="store_true", help=f"put the table into {report.README.name} beside this")
    options = parser.parse_args(arguments)
    with until_signalled(say):
        _compare(options)
        return 0
    return 1


def _compare(options: argparse.Namespace) -> None:
    started = time.monotonic()
    programs = install.install(options.airflow.absolute(), say=say)
    blocks = [compare.BLOCKS[number] for number in options.block or range(len(compare.BLOCKS))]
    pairs = compare.compare(programs, compare.sizes(small=options.small), blocks, lock=options.lock, say=say)
    rows = [report.figures(pair) for pair in pairs]
    say(report.table(rows))
    say(f"{time.monotonic() - started:.0f} s in all")
    where = machine() | {"airflow": install.VERSION}
    if options.keep:
        report.keep(where, rows)
    print(json.dumps({"machine": where, "rows": rows}))
