"""`make fuzz`: at least 10,000 cases, then a real stack over hostile files and messages; the last line is JSON."""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from fuzz.run import feed_all, ground
from fuzz.stack import real_processes

parser = argparse.ArgumentParser(prog="fuzz")
parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
parser.add_argument("--cases", type=int, default=12_000)
parser.add_argument("--seconds", type=float, default=900.0)
options = parser.parse_args()


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


started = time.monotonic()
with tempfile.TemporaryDirectory(prefix="pl-") as name:
    folder = Path(name)
    folder.chmod(0o755)  # an embedded PostgreSQL of root's runs as another user
    say(f"seed {options.seed}")
    with ground(folder) as on:
        result = feed_all(on, options.cases, seed=options.seed, seconds=options.seconds, say=say)
        result.cases["stack"] = real_processes(on, seed=options.seed, result=result)
        say(f"stack: {result.cases['stack']} cases{'; FAILED' if 'stack' in result.failures else ''}")
for area, failure in result.failures.items():
    say(f"--- {area}\n{failure}")
line = {
    "seed": options.seed,
    "cases": sum(result.cases.values()),
    "areas": result.cases,
    "failures": len(result.failures),
    "seconds": round(time.monotonic() - started, 1),
}
print(json.dumps(line))
sys.exit(1 if result.failures else 0)
