"""SIGKILL at each fault point, with real processes: every run ends, and every success ran exactly once.

`make test` takes a few of the points with a few runs each; `make test-faults` all of them with 200 runs each.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import pytest
from support.faulty import FULL, FaultyStack, expected_state, faulty_stack
from support.ledger import Ledger
from support.stacks import StackFactory

from scheduler.process import fault_points

pytestmark = pytest.mark.stack

RUNS = int(os.environ.get("FAULT_RUNS", "200" if FULL else "4"))
#: Fixed, so that a failure in CI comes again.
SEED = int(os.environ.get("FAULT_SEED", "20261122"))
#: At each point the process is killed at these times that any process comes by.
KILLED_AT = (1, 4, 20) if FULL else (1, 3)
#: Those that prove the most are always among the short selection.
ALWAYS = ("queue.committed", "follow.commit", "report.after", "claim.after", "continue.before", "continue.after")
SHORT = 9
SETTLED_S = 120.0


def chosen_points() -> list[str]:
    # test_tables_survive.py has those of tables.
    own = fault_points.POINTS.keys() - fault_points.TABLES.keys()
    if FULL:
        return [name for name in fault_points.POINTS if name in own]
    others = sorted(own - set(ALWAYS))
    return [*ALWAYS, *random.Random(SEED).sample(others, SHORT - len(ALWAYS))]


@pytest.mark.long
@pytest.mark.timeout(7200 if FULL else 300)
def test_every_task_runs_once_after_a_sigkill_at_each_point(stack_factory: StackFactory, ledger: Ledger, tmp_path: Path) -> None:
    points = chosen_points()
    print(f"seed {SEED}, {RUNS} runs each at {', '.join(points)}", file=sys.stderr)
    kills: dict[str, int] = {}
    slowest_s: dict[str, float] = {}
    with faulty_stack(stack_factory, ledger, tmp_path / "faults") as faulty:
        for point in points:
            began = time.monotonic()
            faulty.inject(",".join(f"{point}=kill@{nth}" for nth in KILLED_AT))
            faulty.provoke(point, RUNS)
            faulty.settle(timeout=SETTLED_S, until=lambda point=point: faulty.struck(point))
            kills[point], slowest_s[point] = len(faulty.struck(point)), round(time.monotonic() - began, 1)
            print(f"{point}: {kills[point]} kills, {slowest_s[point]} s", file=sys.stderr)
        faulty.inject("")
        untold = "select 1 from notice where ended_at is null"
        faulty.settle(timeout=SETTLED_S, until=lambda: not faulty.rows(untold))

        assert [run for run in ended(faulty) if run[2] != expected_state(run[0])] == []
        verdict = ledger.check(faulty.url)
    assert all(kills.values()), kills
    assert verdict.ok, verdict
    print(json.dumps({"seed": SEED, "points": len(points), "kills": sum(kills.values()), **verdict.counts,
                      "overtaken": len(verdict.overtaken), "slowest_s": slowest_s}), file=sys.stderr)  # fmt: skip


def ended(faulty: FaultyStack) -> list[tuple[str, str, str]]:
    """DAG, run id and state of each run."""
    return [(row[0], row[1], row[2]) for row in faulty.rows("select dag_id, run_id, state from dag_run")]
