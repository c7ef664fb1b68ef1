"""`make bench`: python -m bench [NAME ...] [--iterations N], `bench peers` or `bench web`. The last line is one JSON object."""

import argparse
import json
import sys

from bench import parts, report
from bench.options import Options
from scheduler.embedded.stack import until_signalled


def main() -> int:
    if sys.argv[1:2] == ["peers"]:
        from bench.peers import command

        return command.main(sys.argv[2:])
    if sys.argv[1:2] == ["web"]:
        from bench import web

        return web.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, if left out: {', '.join(parts.names())}")
    parser.add_argument("--iterations", type=int, default=3, help="runs of each shape that count, after its warm-up")
    parser.add_argument(
        "--small", action="store_true", help="everything as small as it can be: a smoke test, whose times say nothing"
    )
    parser.add_argument(
        "--instances", type=int, default=1_000_000, metavar="N",
        help="finished task instances of `history` and `churn` (1,000,000; 10,000,000 need 15 GB of disk)",
    )  # fmt: skip
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.names) - set(parts.names()))
    if unknown or min(chosen.iterations, chosen.instances) < 1:
        parser.error(f"no part is named {', '.join(unknown)}" if unknown else "--iterations and --instances must be at least 1")
    options = Options(iterations=chosen.iterations, small=chosen.small, instances=chosen.instances, say=report.say)
    with until_signalled(report.say):
        result = {"machine": report.machine()} | parts.measure(chosen.names or parts.names(), options)
        report.table(result)
        if not options.small:
            report.goal_table(result)
        print(json.dumps(result))
        for name, error in result.get(parts.FAILED, {}).items():
            report.say(f"{name} failed: {error}")
        return 1 if parts.FAILED in result else 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
