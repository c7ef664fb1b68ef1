"""The pooler of a worker is killed again and again while chains run: every task runs once, and connections stay few."""

import contextlib
import os
import signal

import psutil
import pytest
from support.ledger import Ledger
from support.stacks import Stack, StackFactory
from support.waiting import eventually

from workers.supervision import pooler_process

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

CONNECTIONS, CHILDREN, CHAINS, TASKS, KILLS = 2, 8, 12, 12, 8
BODY = """
for chain in range({chains}):
    before = None
    for number in range({tasks}):
        @task(task_id=f"c{{chain}}_t{{number}}")
        def t():
            work()
        one = t()
        if before is not None:
            before >> one
        before = one
"""
OPEN = "select count(*) from pg_stat_activity where application_name = 'paceline task' and datname = current_database()"


def pooler_of(stack: Stack) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(stack.pid("worker-1")).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == pooler_process.NAME:
                    return child
    return None


def test_no_task_is_lost_or_run_twice_while_its_pooler_is_killed(stack_factory: StackFactory, ledger: Ledger) -> None:
    source = ledger.dag("c", BODY.format(chains=CHAINS, tasks=TASKS), max_active_tasks=100)
    env = {"PACELINE_WORKER_CONNECTIONS": str(CONNECTIONS), "PACELINE_WORKER_HEARTBEAT_TIMEOUT": "60"}
    stack = stack_factory({"c.py": source}, schedulers=1, workers=[("default", CHILDREN)], env=env)
    url = stack.settings.database_url
    eventually(lambda: stack.cli("dags", "trigger", "c", "--run-id", "r").returncode == 0, timeout=90)

    def ended() -> int:
        return int(ledger_of(url).rows("select count(*) from task_instance where state = 'success'")[0][0])

    for kill in range(KILLS):
        # Each time the chains have gone on.
        eventually(lambda kill=kill: ended() >= (kill + 1) * CHAINS * TASKS // (KILLS + 2), timeout=60)
        # Those of the one before may still end.
        assert ledger_of(url).rows(OPEN)[0][0] <= 2 * CONNECTIONS
        pooler = pooler_of(stack)
        if pooler is not None:
            os.kill(pooler.pid, signal.SIGKILL)
    eventually(lambda: ended() == CHAINS * TASKS, timeout=90)

    eventually(lambda: ledger_of(url).rows("select state from dag_run") == [("success",)], timeout=60)

    assert ledger_of(url).rows("select distinct try_number from task_instance") == [(1,)]
    verdict = ledger.check(url)
    assert verdict.ok, verdict
    stack.kill("worker-1", signal.SIGTERM)
    eventually(lambda: pooler_of(stack) is None and ledger_of(url).rows(OPEN)[0][0] == 0, timeout=30)


def ledger_of(url: str) -> Ledger:
    """Asks the database of the stack."""
    return Ledger(url)
