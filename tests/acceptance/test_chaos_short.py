"""A short chaos run: the same cluster, faults and checker as `make chaos`, for half a minute with short heartbeats."""

import json
from pathlib import Path

import pytest
from chaos.run import chaos

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.alone]

COUNTERS = [
    "lost", "stuck", "double_running", "double_success", "lost_success", "failed_without_cause", "skipped_without_cause",
    "wrong_xcoms", "out_of_order", "wrong_runs", "teardowns_missed", "parallelism_overruns", "pool_overruns", "deadlocks",
    "overlaps_without_fault",
]  # fmt: skip


@pytest.mark.timeout(400)
def test_every_task_runs_once_during_half_a_minute_of_faults(short_folder: Path) -> None:
    short_folder.chmod(0o755)  # an embedded PostgreSQL of root's runs as another user

    report = chaos(short_folder, seed=26, seconds=25, quick=True, longest_s=4.0, say=lambda _: None)

    summary = json.loads(report.line)
    assert report.ok, report.text()
    assert list(summary) == ["seed", "tis", "faults", *COUNTERS, "overlaps", "recovery_s"]
    assert summary["tis"] > 150
    assert sum(summary["faults"].values()) > 4  # another time zone among them
    assert all(summary[key] == 0 for key in COUNTERS)
    assert set(summary["recovery_s"]) == {"scheduler", "worker", "redis", "postgres"}
