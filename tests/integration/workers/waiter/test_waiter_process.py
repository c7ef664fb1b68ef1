"""`paceline waiter` as a process of a stack."""

import signal
from typing import Any

from support.waiting import eventually

from scheduler.store.db import database

DEFERS = """
from datetime import timedelta
from paceline import dag
from paceline.sensors import WaitSensor

@dag(schedule=None)
def waits():
    WaitSensor(task_id="short", time_to_wait=timedelta(seconds=0.5), deferrable=True)
    WaitSensor(task_id="long", time_to_wait=timedelta(hours=1), deferrable=True)
waits()
"""


def test_a_stack_with_a_waiter_serves_deferred_tasks_and_gives_them_back_when_it_stops(stack_factory: Any) -> None:
    stack = stack_factory(dags={"waits.py": DEFERS}, schedulers=1, workers=[("default", 1)], waiters=1)
    eventually(lambda: stack.cli("dags", "trigger", "waits", "--run-id", "r").returncode == 0, timeout=40, interval=1.0)

    def states() -> dict[str, str]:
        return {task["task_id"]: task["state"] for task in stack.json("runs", "show", "waits", "r")["tasks"]}

    eventually(lambda: states() == {"short": "success", "long": "deferred"}, timeout=40, interval=0.5, message=stack.logs)
    assert stack.cli("alive", "waiter").returncode == 0
    assert any(check["check"] == "waiters" and check["ok"] for check in stack.json("doctor")["checks"])

    stack.kill("waiter-1", signal.SIGTERM)

    eventually(lambda: "stopped" in stack.supervisor.log_tail("waiter-1"))
    # Its supervisor starts another one, which takes over at once.
    holder = (
        "select p.stopped_at is null, (select count(*) from process where kind = 'waiter')"
        " from deferral d join process p on p.id = d.waiter"
    )
    engine = database.create(stack.settings)

    def taken_over() -> bool:
        with engine.connect() as connection:
            return connection.exec_driver_sql(holder).all() == [(True, 2)]

    eventually(taken_over, timeout=20, message=stack.logs)
    engine.dispose()
