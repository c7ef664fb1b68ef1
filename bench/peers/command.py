"""`python -m bench peers`: installs what is missing, compares, and prints tables and finally one JSON object."""

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report as bench_report
from bench.peers import compare, install, report
from bench.peers.engines import alternation, catalog
from bench.peers.engines import report as engine_report
from bench.report import machine, say
from bench.stack import StackError
from scheduler.embedded.stack import until_signalled
from scheduler.embedded.supervisor import ChildError

AIRFLOW = "airflow"
KNOWN = (AIRFLOW, *catalog.BY_NAME)


def main(arguments: Sequence[str]) -> int:
    """Compare. Returns 0 if every run on all systems succeeded, 1 if an engine failed or after a signal to end.

    StackError if Airflow or Paceline beside it failed.
    """
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    parser.add_argument(
        "--engines", type=names, default=(AIRFLOW,), metavar="NAME,NAME", help=f"all, or of {', '.join(KNOWN)}; default {AIRFLOW}"
    )
    parser.add_argument("--small", action="store_true", help="shapes of a few tasks: does it work?")
    parser.add_argument("--lock", type=Path, help="a file to hold during each block, for machines that others measure on too")
    parser.add_argument("--keep", action="store_true", help="put the tables into the README files of bench and peers")
    engines = parser.add_argument_group("engines other than Airflow")
    engines.add_argument("--iterations", type=int, default=3, help="turns of Paceline and of each engine")
    engines.add_argument(
        "--shape",
        action="append",
        choices=alternation.tasks(),
        help=f"only this; repeatable; default {' '.join(alternation.USUAL)}",
    )
    airflow = parser.add_argument_group("Airflow")
    airflow.add_argument(
        "--airflow", type=Path, default=install.default_folder(), help=f"its environment; also ${install.VARIABLE}"
    )
    airflow.add_argument(
        "--block", type=int, action="append", choices=range(len(compare.BLOCKS)), help="only this block; repeatable"
    )
    options = parser.parse_args(arguments)
    if options.iterations < 1:
        parser.error("--iterations must be at least 1")
    with until_signalled(say):
        started, where = time.monotonic(), machine()
        result: dict[str, Any] = {"machine": where}
        if AIRFLOW in options.engines:
            where["airflow"] = install.VERSION
            result["rows"] = _beside_airflow(options, where)
        if named := [catalog.BY_NAME[name] for name in options.engines if name != AIRFLOW]:
            result |= _beside_engines(options, named, where)
        say(f"{time.monotonic() - started:.0f} s in all")
        print(json.dumps(result))
        return 1 if result.get("failed") else 0
    return 1


def names(text: str) -> tuple[str, ...]:
    """The names of systems in an argument. ArgumentTypeError if there is no such system."""
    chosen = KNOWN if text == "all" else tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in chosen if name not in KNOWN]:
        raise argparse.ArgumentTypeError(f"no engine is named {', '.join(unknown)}; there are {', '.join(KNOWN)}")
    return chosen


def _beside_airflow(options: argparse.Namespace, where: dict[str, Any]) -> list[dict[str, Any]]:
    programs = install.install(options.airflow.absolute(), say=say)
    blocks = [compare.BLOCKS[number] for number in options.block or range(len(compare.BLOCKS))]
    pairs = compare.compare(programs, compare.sizes(small=options.small), blocks, lock=options.lock, say=say)
    rows = [report.figures(pair) for pair in pairs]
    say(report.table(rows))
    if options.keep:
        report.keep(where, rows)
    return rows


def _beside_engines(options: argparse.Namespace, named: Sequence[catalog.Engine], where: dict[str, Any]) -> dict[str, Any]:
    """The pieces `engines` and, by name, `failed`. An engine that fails keeps no other from being measured."""
    chosen = {
        name: task for name, task in alternation.tasks(small=options.small).items() if name in (options.shape or alternation.USUAL)
    }
    measured: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for engine in named:
        try:
            engine.install(say)
            with compare.locked(options.lock):
                runs = 1 if options.small else alternation.RUNS
                pairs = alternation.alternate(engine, chosen, iterations=options.iterations, runs=runs, say=say)
        except subprocess.CalledProcessError as error:
            failed[engine.name] = f"which cannot be installed here: {install.reason(error)}"
        except (StackError, ChildError) as error:
            say(str(error))
            failed[engine.name] = f"which failed: {str(error).splitlines()[0]}"
        else:
            measured[engine.name] = engine_report.piece(engine, pairs)
    result = {"engines": measured} | ({"failed": failed} if failed else {})
    say(engine_report.table(measured))
    if not options.small:
        bench_report.goal_table(result)
    for name, why in failed.items():
        say(f"Not measured: {name}, {why}")
    if options.keep and measured:
        engine_report.keep(where, measured, failed)
    return result
