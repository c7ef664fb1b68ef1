"""`python -m bench.scale RESULT`: fits the model to a bench result, compares it with every shape, and simulates deployments."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import parts
from bench.options import Options
from bench.report import machine, say
from bench.scale import deployments, fit, report
from bench.scale.parameters import Parameters
from scheduler.embedded.stack import until_signalled


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if all errors are small enough, and all deployments and changes of them are as expected."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("result", type=Path, help="what `make bench` ended with; the last line is read")
    parser.add_argument("--measure", action="store_true", help="first measure what the model needs, into this file")
    parser.add_argument("--iterations", type=int, default=2, help="with --measure: runs of each shape that count")
    parser.add_argument("--small", action="store_true", help="with --measure: shapes of a few tasks: does it work?")
    parser.add_argument("--large", action="store_true", help="also the deployments of docs/explanation/scale.md")
    parser.add_argument("--keep", action="store_true", help="put the tables into docs/explanation/scale.md")
    options = parser.parse_args(arguments)
    if options.iterations < 1:
        parser.error("--iterations must be at least 1")
    with until_signalled(say):
        if options.measure:
            chosen = Options(iterations=options.iterations, small=options.small, say=say)
            measured = {"machine": machine()} | parts.measure(list(fit.MEASURED), chosen)
            options.result.write_text(json.dumps(measured) + "\n", encoding="utf-8")
        result = json.loads(options.result.read_text(encoding="utf-8").splitlines()[-1])
        if failed := result.get(parts.FAILED, {}).keys() & set(fit.MEASURED):
            parser.error(f"{options.result}: the parts {', '.join(sorted(failed))} have failed, so the model lacks their costs")
        return _model(result, options)
    return 1


def _model(result: Mapping[str, Any], options: argparse.Namespace) -> int:
    parameters = fit.fit(result)
    rows = fit.check(parameters, result)
    say(report.check_table(rows))
    say(report.check_line(rows))
    large, unnoticed = _large(parameters) if options.large else ([], [])
    if options.keep:
        report.keep(result["machine"], rows, large)
    print(json.dumps({"parameters": asdict(parameters), "check": rows, "large": large, "unnoticed": unnoticed}))
    return 1 if fit.wrong(rows) or unnoticed or any(row["keeps_up"] != row["expected"] for row in large) else 0


def _large(parameters: Parameters) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of all scenarios, and the changes that should overload the largest of them and do not."""
    rows = []
    for scenario in deployments.SCENARIOS:
        rows.append(deployments.simulate(parameters, scenario))
        say(f"{scenario.name}: {'keeps up' if rows[-1]['keeps_up'] else '; '.join(rows[-1]['why_not'])}")
    unnoticed = []
    for what, changed, scenario in deployments.overloads(parameters, deployments.SCENARIOS[1], rows[1]):
        row = deployments.simulate(changed, scenario, deployments.OVERLOADED_S)
        say(f"{what}: {'KEEPS UP' if row['keeps_up'] else '; '.join(row['why_not'])}")
        if row["keeps_up"]:
            unnoticed.append(what)
    say(report.large_table(rows))
    return rows, unnoticed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
