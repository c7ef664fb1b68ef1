"""Fault points: off without a test, refused outside of one, and each that is listed is in the code."""

import os
import re
import subprocess
import sys
import timeit
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.exceptions import SettingsError
from scheduler.process import fault_points

ROOT = Path(__file__).parents[3]
LOCAL = "postgresql://u@/db?host=/run/x"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    fault_points.arm({}, LOCAL)


def armed(folder: Path, plan: str) -> None:
    fault_points.arm({fault_points.FAULTS: plan, fault_points.FOLDER: str(folder)}, LOCAL)


def test_every_point_is_in_the_code_and_every_point_of_the_code_is_listed() -> None:
    found: Counter[str] = Counter()
    for folder in ("paceline", "scheduler", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            found.update(re.findall(r'fault_points\.point\("([a-z.]+)"\)', source))
            for step in re.findall(r'@step\("([a-z]+)"', source):
                found.update([f"{step}.commit", f"{step}.committed"])
            for step in re.findall(r'step="([a-z]+)"', source):
                found.update([f"{step}.publish", f"{step}.published"])

    assert set(found) == set(fault_points.POINTS)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ("queue.commited=kill", "did you mean queue.committed?"),
        ("nothing=kill", "docs/reference/fault-points.md lists them"),
        ("queue.commit=explode", "holds 'queue.commit=explode'; write <point>=kill"),
        ("queue.commit=kill@0", "holds 'queue.commit=kill@0'"),
        ("@/nowhere/at/all", "names /nowhere/at/all, which cannot be read"),
    ],
)
def test_a_wrong_plan_is_refused_in_one_sentence(tmp_path: Path, plan: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(sentence)):
        armed(tmp_path, plan)


def test_without_the_folder_of_a_test_it_is_refused() -> None:
    with pytest.raises(SettingsError, match="is for tests only"):
        fault_points.arm({fault_points.FAULTS: "queue.commit=kill"}, LOCAL)


@pytest.mark.parametrize(
    ("url", "environ", "local"),
    [
        (LOCAL, {}, True),
        ("postgresql://u:p@localhost:5432/db", {}, True),
        ("postgresql://u:p@127.0.0.1/db", {}, True),
        ("postgresql://u:p@[::1]:5432/db", {}, True),
        ("postgresql://u:p@%2Frun%2Fx/db", {}, True),
        ("postgresql://u@/db", {}, True),
        ("postgresql://u:p@db.example.org/db", {}, False),
        ("postgresql://u:localhost@10.0.0.1:5432/db", {}, False),
        ("postgresql://u@localhost,db.example.org/db", {}, False),
        ("postgresql://u@/db?host=db.example.org", {}, False),
        ("postgresql://u@localhost/db?hostaddr=10.0.0.1", {}, False),
        ("postgresql://u@/db?service=production", {}, False),
        ("postgresql://u@/db", {"PGHOST": "db.example.org"}, False),
    ],
)
def test_a_database_on_another_machine_is_refused(tmp_path: Path, url: str, environ: dict[str, str], local: bool) -> None:
    assert fault_points.is_local(url, environ) is local
    if not local:
        with pytest.raises(SettingsError, match="on another machine"):
            fault_points.arm({fault_points.FAULTS: "queue.commit=kill", fault_points.FOLDER: str(tmp_path), **environ}, url)


@pytest.mark.long
@pytest.mark.parametrize("role", ["scheduler", "worker", "waiter"])
def test_a_process_that_finds_it_set_does_not_start(role: str, tmp_path: Path) -> None:
    environment = {
        **os.environ, "PACELINE_FAULTS": "queue.commit=kill", "PACELINE_HOME": str(tmp_path), "PACELINE_DATABASE_URL": LOCAL,
        "PACELINE_BROKER_URL": "redis://127.0.0.1:1/0",
    }  # fmt: skip

    done = subprocess.run(
        [sys.executable, "-P", "-m", "scheduler.cli", role],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "PACELINE_FAULTS makes processes fail and is for tests only" in done.stderr


def test_only_the_nth_time_counts_over_all_processes(tmp_path: Path) -> None:
    armed(tmp_path, "queue.commit=raise@2")
    fault_points.point("queue.commit")
    with pytest.raises(fault_points.InjectedError):
        fault_points.point("queue.commit")
    fault_points.point("queue.commit")
    fault_points.point("queue.committed")

    environ = {fault_points.FAULTS: "queue.commit=kill@4", fault_points.FOLDER: str(tmp_path)}
    other = (
        f"from scheduler.process import fault_points; fault_points.arm({environ!r}, {LOCAL!r}); fault_points.point('queue.commit')"
    )
    assert subprocess.run([sys.executable, "-c", other], check=False).returncode == -9
    assert [line.split()[2:] for line in (tmp_path / "struck").read_text().splitlines()] == [
        ["queue.commit", "raise", "2"],
        ["queue.commit", "kill", "4"],
    ]


def test_a_plan_in_a_file_may_change_while_the_process_runs(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text("")
    armed(tmp_path, f"@{plan}")
    fault_points.point("queue.commit")

    plan.write_text("queue.commit=raise")

    with pytest.raises(fault_points.InjectedError):
        fault_points.point("queue.commit")


def test_off_it_costs_nothing() -> None:
    # About ten of these stand on the way of a task, which takes two milliseconds.
    per_call_s = min(timeit.repeat(lambda: fault_points.point("queue.commit"), number=20_000, repeat=5)) / 20_000

    assert per_call_s < 2e-6
