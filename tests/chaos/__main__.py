"""`make chaos`: python -m chaos [--seed N] [--minutes M] [--quick] [--keep]. The last line is one JSON object."""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from chaos.run import chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="which faults, when, and which DAGs; drawn if left out")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long things go wrong")
    parser.add_argument("--quick", action="store_true", help="short heartbeats instead of the default settings")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and databases")
    options = parser.parse_args()
    seed = random.randrange(10_000) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.chmod(0o755)  # an embedded PostgreSQL of root's runs as another user
    report = chaos(folder, seed=seed, seconds=options.minutes * 60, quick=options.quick, say=_say)
    _say(report.text())
    if options.keep or not report.ok:
        _say(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    print(report.line)
    return 0 if report.ok else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
