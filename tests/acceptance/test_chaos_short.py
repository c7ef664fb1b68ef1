"""A short chaos run: the same stage, faults and judge as `make chaos`, for half a minute with short heartbeats."""

import json
from pathlib import Path

import pytest
from chaos.run import chaos

pytestmark = [pytest.mark.stack, pytest.mark.alone]

KEYS = ["seed", "tis", "faults", "lost", "stuck", "double_running", "double_success", "pool_overruns", "deadlocks", "recovery_s"]


@pytest.mark.timeout(400)
def test_half_a_minute_of_faults_loses_nothing_and_doubles_nothing(short_folder: Path) -> None:
    short_folder.chmod(0o755)  # an embedded PostgreSQL of root's runs as another user

    report = chaos(short_folder, seed=26, seconds=25, quick=True, longest_s=4.0, say=lambda _: None)

    said = json.loads(report.line)
    assert report.ok, report.text()
    assert list(said) == KEYS
    assert said["tis"] > 150
    assert sum(said["faults"].values()) > 4  # another time zone among them
    assert all(said[key] == 0 for key in KEYS[3:9])
    assert set(said["recovery_s"]) == {"scheduler", "worker", "redis", "postgres"}
