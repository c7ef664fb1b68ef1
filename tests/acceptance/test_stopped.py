"""SIGSTOP, and SIGCONT long after the process was declared lost: no duplicate, no failed task instance.

`make test` stops processes until they are declared lost, with short timeouts; `make test-faults` for 60 s with the defaults.
"""

import os
import signal
import time
from pathlib import Path

import pytest
from support.faulty import FULL, FaultyStack, default_times, faulty_stack
from support.ledger import Ledger
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.settings import log_paths
from workers.supervision.heartbeat import NO_LONGER_CURRENT
from workers.task.execute import REFUSED

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

TIMES = default_times() if FULL else {}
STOPPED_S = 60.0 if FULL else 0.0
POINTS = (
    ("queue.commit", "queue.publish", "queue.published", "promote.commit", "promote.committed", "start.commit", "heartbeat.commit")
    if FULL
    else ("queue.commit",)
)  # fmt: skip

#: The first try of `late` has nothing left to do when its worker continues, that of `endless` never ends by itself.
LONG = """
@task
def late(ti):
    with entry():
        while ti.try_number == 1 and not os.path.exists({go!r}):
            time.sleep(0.05)

@task
def endless(ti):
    with entry():
        while ti.try_number == 1:
            time.sleep(0.05)
late(), endless()
"""


def hold(stopped_at: float) -> None:
    """Wait until the process has been stopped for the time of this test."""
    eventually(lambda: time.monotonic() >= stopped_at + STOPPED_S, timeout=STOPPED_S + 5, interval=0.2)


def expired(faulty: FaultyStack, pid: int) -> bool:
    return faulty.rows("select stopped_at is not null from process where pid = %s order by started_at desc limit 1", pid) == [
        (True,)
    ]


@pytest.mark.long
def test_runs_end_without_a_stopped_scheduler_which_registers_again(
    stack_factory: StackFactory, ledger: Ledger, tmp_path: Path
) -> None:
    with faulty_stack(stack_factory, ledger, tmp_path / "faults", env=TIMES, waiters=0) as faulty:
        for point in POINTS:
            faulty.inject(f"{point}=stop@1")
            faulty.trigger("work", 6, point)
            eventually(faulty.struck, timeout=60, message=faulty.stack.logs)
            (pid,), stopped_at = faulty.struck(), time.monotonic()
            # The others need the locks that it holds: the server ends its session.
            faulty.settle(timeout=120)
            eventually(lambda pid=pid: expired(faulty, pid), timeout=40, message=faulty.stack.logs)
            hold(stopped_at)

            os.kill(pid, signal.SIGCONT)

            eventually(lambda pid=pid: not expired(faulty, pid), timeout=20, message=faulty.stack.logs)
            faulty.trigger("work", 2, point)
            faulty.settle(timeout=120)
        verdict = ledger.check(faulty.url)
        spent = faulty.rows("select reason from task_try")
        states = faulty.rows("select distinct state from task_instance")
        logs_ = faulty.stack.logs()
    assert verdict.ok and not verdict.overtaken, verdict
    assert states == [("success",)]
    assert spent == []
    assert "was declared lost and registers again" in logs_


@pytest.mark.long
def test_a_stopped_worker_loses_its_tasks_and_its_late_reports_are_refused(
    stack_factory: StackFactory, ledger: Ledger, tmp_path: Path
) -> None:
    options = {"default_args": {"retries": 2, "retry_delay": 0.1}}
    files = {
        "long.py": ledger.dag("long", LONG.format(go=str(tmp_path / "go")), **options),
        "short.py": ledger.dag("short", "task(task_id='t')(lambda: work())()"),
    }
    workers = [("default", 1)] * 3
    with faulty_stack(stack_factory, ledger, tmp_path / "faults", files=files, env=TIMES, workers=workers, waiters=0) as faulty:
        faulty.trigger("long", 1, "r")
        eventually(lambda: len(ledger.rows("select 1 from ledger")) == 2, timeout=60, message=faulty.stack.logs)
        holders = [row[0] for row in faulty.rows("select p.pid from task_instance t join process p on p.id = t.worker")]
        assert len(set(holders)) == 2
        stopped_at = time.monotonic()
        for pid in holders:
            os.killpg(pid, signal.SIGSTOP)
        try:
            faulty.settle(timeout=120)
            hold(stopped_at)
            (tmp_path / "go").touch()
        finally:
            for pid in holders:
                os.killpg(pid, signal.SIGCONT)

        logged = {name: try_log(faulty, name) for name in ("late", "endless")}
        eventually(lambda: all(REFUSED in path.read_text() for path in logged.values()), timeout=60, message=faulty.stack.logs)
        assert NO_LONGER_CURRENT in logged["endless"].read_text()
        logs = faulty.stack.logs()
        assert logs.count("refused: dispatch") == 2
        # All three take work again.
        eventually(lambda: all(not expired(faulty, pid) for pid in holders), timeout=20)
        faulty.trigger("short", 9, "after")
        faulty.settle(timeout=60)
        verdict = ledger.check(faulty.url)
        tries = faulty.rows(
            "select t.task_id, y.state from task_try y join task_instance t on t.id = y.task_instance_id order by 1"
        )
        states = faulty.rows("select distinct state from task_instance")
        worked = faulty.rows("select count(distinct worker) from task_instance")
    assert verdict.ok, verdict
    assert len(verdict.overtaken) == 2
    assert tries == [("endless", "failed"), ("late", "failed")]
    assert states == [("success",)]
    assert worked[0][0] >= 2


def try_log(faulty: FaultyStack, task_id: str) -> Path:
    run_id = faulty.rows("select run_id from dag_run where dag_id = 'long'")[0][0]
    folder = faulty.stack.settings.logs_folder
    return Path(log_paths.try_path(folder, dag_id="long", run_id=run_id, task_id=task_id, map_index=-1, try_number=1))
