"""`make test-chaos-mutants`: a short chaos run of each mutant, and of the product itself. The last line is one JSON object."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos.mutants import MUTANTS, Mutant, write
from chaos.run import chaos

SEED, SECONDS, SETTLE_S, TIS_PER_SECOND = 5, 12.0, 8.0, 25.0
#: The product as it is, with the faults of all mutants.
UNCHANGED = Mutant("unchanged", "", (), tuple({fault for mutant in MUTANTS for fault in mutant.faults}))
LIMIT_S = 240.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-chaos-mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="which mutants, or `unchanged`; all if left out")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--here", action="store_true", help="run one in this process, and print its counters")
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in (UNCHANGED, *MUTANTS)}
    names = options.names or list(known)
    if unknown := sorted(set(names) - known.keys()):
        parser.error(f"there is no mutant {', '.join(unknown)}; there are {', '.join(known)}")
    if options.here:
        print(json.dumps(counted(known[names[0]])))
        return 0
    with ThreadPoolExecutor(options.jobs) as pool:
        results = dict(zip(names, pool.map(_in_process, names), strict=True))
    caught = {name: found for name, found in results.items() if name != "unchanged" and found.get(known[name].counter)}
    clean = not any(results.get("unchanged", {}).values())
    mutants = [name for name in names if name != "unchanged"]
    survivors = sorted(set(mutants) - caught.keys())
    summary = {"mutants": len(mutants), "caught": len(caught), "survived": survivors, "unchanged_is_clean": clean}
    print(json.dumps(summary | {"by": {name: known[name].counter for name in caught}}))
    return 0 if clean and not survivors else 1


def counted(mutant: Mutant) -> dict[str, int]:
    """The counters of a short chaos run of this mutant."""
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    folder.chmod(0o755)  # an embedded PostgreSQL of root's runs as another user
    try:
        packages = write(mutant, folder / "packages") if mutant.changes else None
        (cluster := folder / "s").mkdir()
        report = chaos(
            cluster, seed=SEED, seconds=SECONDS, quick=False, longest_s=3.0, faults=mutant.faults, measured=(), settle_s=SETTLE_S,
            tis_per_second=TIS_PER_SECOND, packages=packages, say=lambda _: None,
        )  # fmt: skip
        print(report.text(), file=sys.stderr)
        return report.counts
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_process(name: str) -> dict[str, int]:
    """In a process of its own: a defect may take all of it along."""
    command: Sequence[str] = (sys.executable, "-m", "chaos.run_mutants", "--here", name)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        stderr = str(error.stderr or "")[-2000:]
        print(f"{name}: {error}\n{stderr}", file=sys.stderr, flush=True)
        return {}
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    seen = ", ".join(f"{counter} {number}" for counter, number in found.items() if number)
    print(f"{name}: {seen or 'nothing found'}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
