"""`GET /health` and `paceline doctor --role` of real processes agree, also while the process hangs."""

import signal
from typing import Any

import pytest
from support.processes import free_port, health
from support.stacks import Stack
from support.waiting import eventually

from scheduler.store.db import database

pytestmark = pytest.mark.stack

BLOCKS = """
import time
from paceline import DAG, task
from paceline.triggers import BaseTrigger, TriggerEvent
from paceline.operators import PythonOperator

class Rude(BaseTrigger):
    def serialize(self):
        return "blocks.Rude", {}
    async def run(self):
        time.sleep(3600)
        yield TriggerEvent(None)

class Waits(PythonOperator):
    def execute(self, context):
        self.defer(trigger=Rude(), method_name="execute")

with DAG("blocks", schedule=None):
    Waits(task_id="t", python_callable=print)
"""


def doctor(stack: Stack, role: str) -> tuple[int, str]:
    done = stack.cli("doctor", "--role", role)
    return done.returncode, done.stderr


def test_a_scheduler_that_hangs_in_a_query_or_is_stopped_is_unhealthy(stack_factory: Any) -> None:
    port = free_port()
    env = {
        "PACELINE_SCHEDULER_HEALTH_PORT": str(port),
        "PACELINE_SCHEDULER_SCHEDULER_HEALTH_CHECK_THRESHOLD": "3",
        "PACELINE_SCHEDULER_SCHEDULER_HEARTBEAT_SEC": "0.5",
    }
    stack = stack_factory(schedulers=1, workers=[], env=env)
    eventually(lambda: health(port)[0] == 200, timeout=60, message=stack.logs)
    assert set(health(port)[1]["parts"]) == {"loop", "heartbeat", "database", "dag_files", "broker", "settings"}
    assert doctor(stack, "scheduler")[0] == 0

    engine = database.create(stack.settings)
    with engine.begin() as elsewhere:
        elsewhere.exec_driver_sql("lock table dag_run in access exclusive mode")
        eventually(lambda: health(port)[0] == 503, message=stack.logs)
        report = health(port)[1]
        code, message = doctor(stack, "scheduler")
    engine.dispose()

    assert report["parts"]["loop"]["message"].startswith("The loop has not run a service for")
    assert (code, "The loop has not run a service for" in message) == (1, True)
    eventually(lambda: health(port)[0] == 200, message=stack.logs)
    stack.kill("scheduler-1", signal.SIGSTOP)
    try:
        code, message = doctor(stack, "scheduler")
    finally:
        stack.kill("scheduler-1", signal.SIGCONT)
    assert (code, "does not answer" in message) == (1, True)
    eventually(lambda: doctor(stack, "scheduler")[0] == 0)


def test_a_waiter_whose_trigger_blocks_all_others_is_unhealthy(stack_factory: Any) -> None:
    env = {"PACELINE_WAITER_HEARTBEAT_SEC": "0.5", "PACELINE_WAITER_HEARTBEAT_TIMEOUT": "2"}
    stack = stack_factory(dags={"blocks.py": BLOCKS}, schedulers=1, workers=[("default", 1)], waiters=1, env=env)
    eventually(lambda: doctor(stack, "waiter")[0] == 0, timeout=60, message=stack.logs)
    eventually(lambda: [dag["dag_id"] for dag in stack.json("dags", "list")] == ["blocks"], timeout=60, message=stack.logs)
    assert doctor(stack, "worker")[0] == 0

    assert stack.cli("dags", "trigger", "blocks").returncode == 0

    def said_why() -> bool:
        """Its heartbeat may be missed first."""
        code, message = doctor(stack, "waiter")
        return code == 1 and "A trigger blocks the loop for" in message

    eventually(said_why, timeout=60, interval=0.3, message=stack.logs)
    assert doctor(stack, "worker")[0] == 0
