"""`python -m bench peers`: installs what is missing, compares, and prints tables and finally one JSON object."""

import argparse
import json
import subprocess
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report as bench_report
from bench.peers import compare, install, report
from bench.peers.engines import alternation, catalog
from bench.peers.engines import report as engine_report
from bench.report import machine, say
from scheduler.embedded.stack import until_signalled

AIRFLOW = "airflow"
KNOWN = (AIRFLOW, *catalog.BY_NAME)


def main(arguments: Sequence[str]) -> int:
    """Compare. Returns 0 if every run on all systems succeeded, 1 if one of them failed or after a signal to end."""
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    parser.add_argument(
        "--engines", type=names, default=(AIRFLOW,), metavar="NAME,NAME", help=f"all, or of {', '.join(KNOWN)}; default {AIRFLOW}"
    )
    parser.add_argument("--small", action="store_true", help="shapes of a few tasks: does it work?")
    parser.add_argument("--lock", type=Path, help="a file to hold during each block, for machines that others measure on too")
    parser.add_argument("--keep", action="store_true", help="put the tables into the README files of bench and peers")
    parser.add_argument("--result", type=Path, help="measure nothing: the tables of an earlier result, whose last line is read")
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
        if options.result is None:
            result = _measured(options)
        else:
            result = json.loads(options.result.read_text(encoding="utf-8").splitlines()[-1])
        _show(result, options)
        print(json.dumps(result))
        return 1 if result.get("failed") else 0
    return 1


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """The result with `rows` of Airflow, and `engines`. One that failed is in `failed`, and keeps no other from being measured."""
    started, where = time.monotonic(), machine()
    result: dict[str, Any] = {"machine": where}
    failed: dict[str, str] = {}
    for name in options.engines:
        try:
            if name == AIRFLOW:
                where["airflow"] = install.VERSION
                result["rows"] = _beside_airflow(options)
            else:
                result.setdefault("engines", {})[name] = _beside_engine(options, catalog.BY_NAME[name])
        except subprocess.CalledProcessError as error:
            failed[name] = f"which cannot be installed here: {install.reason(error)}"
        except Exception as error:
            say(traceback.format_exc())
            failed[name] = f"which failed: {(str(error) or type(error).__name__).splitlines()[0]}"
    say(f"{time.monotonic() - started:.0f} s in all")
    return result | ({"failed": failed} if failed else {})


def _show(result: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print the tables and the goals, and keep the tables if that is asked for."""
    rows, engines, failed = result.get("rows"), result.get("engines"), result.get("failed", {})
    if rows:
        say(report.table(rows))
    if engines:
        say(engine_report.table(engines))
        say(engine_report.summary(engines))
        if not options.small:
            bench_report.goal_table(result)
    for name, why in failed.items():
        say(f"Not measured: {name}, {why}")
    if options.keep and rows:
        report.keep(result["machine"], rows)
    if options.keep and engines:
        engine_report.keep(result["machine"], engines, failed)


def names(text: str) -> tuple[str, ...]:
    """The names of systems in an argument. ArgumentTypeError if there is no such system."""
    chosen = KNOWN if text == "all" else tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in chosen if name not in KNOWN]:
        raise argparse.ArgumentTypeError(f"no engine is named {', '.join(unknown)}; there are {', '.join(KNOWN)}")
    return chosen


def _beside_airflow(options: argparse.Namespace) -> list[dict[str, Any]]:
    programs = install.install(options.airflow.absolute(), say=say)
    blocks = [compare.BLOCKS[number] for number in options.block or range(len(compare.BLOCKS))]
    pairs = compare.compare(programs, compare.sizes(small=options.small), blocks, lock=options.lock, say=say)
    return [report.figures(pair) for pair in pairs]


def _beside_engine(options: argparse.Namespace, engine: catalog.Engine) -> dict[str, Any]:
    every = alternation.tasks(small=options.small)
    chosen = {name: task for name, task in every.items() if name in (options.shape or alternation.USUAL)}
    engine.install(say)
    with compare.locked(options.lock):
        runs = 1 if options.small else alternation.RUNS
        pairs = alternation.alternate(engine, chosen, iterations=options.iterations, runs=runs, say=say)
    return engine_report.piece(engine, pairs)
