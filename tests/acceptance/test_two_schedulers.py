"""Two real schedulers and a real worker: the worker follows a chain, pool limits hold, and nothing runs twice."""

from typing import Any

import pytest
from support.stacks import Stack
from support.waiting import eventually

from scheduler.store.db import database

pytestmark = pytest.mark.stack

CHAIN = """
from paceline import DAG
from paceline.operators import EmptyOperator

with DAG("chain", schedule=None):
    before = None
    for number in range(100):
        task = EmptyOperator(task_id=f"t{number:03}")
        if before is not None:
            before >> task
        before = task
"""

#: Two tasks a lane, the second ranking higher, so that following has its part in filling the pools.
POOLS = """
from paceline import DAG
from paceline.operators import EmptyOperator

for pool in ("three", "five"):
    with DAG(f"pool_{pool}", schedule=None, max_active_tasks=1000):
        for number in range(250):
            first, second = (
                EmptyOperator(task_id=f"{name}{number:03}", pool=pool, priority_weight=rank, weight_rule="absolute")
                for rank, name in ((1, "a"), (2, "b"))
            )
            first >> second
"""


def rows(stack: Stack, statement: str) -> list[Any]:
    engine = database.create(stack.settings)
    try:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql(statement))
    finally:
        engine.dispose()


def parsed(stack: Stack, *dag_ids: str) -> None:
    eventually(
        lambda: set(dag_ids) <= {dag["dag_id"] for dag in stack.json("dags", "list")},
        timeout=120,
        interval=0.3,
        message=stack.logs,
    )


def test_a_chain_of_100_is_queued_by_the_worker_and_a_killed_scheduler_is_not_missed(stack_factory: Any) -> None:
    stack = stack_factory(dags={"chain.py": CHAIN}, schedulers=2, workers=[("default", 4)])
    parsed(stack, "chain")

    run = stack.json("dags", "trigger", "chain", "--wait", "--timeout", "120")

    tasks = sorted(run["tasks"], key=lambda task: task["task_id"])
    assert run["state"] == "success"
    assert [task["state"] for task in tasks] == ["success"] * 100
    assert tasks[0]["queued_by"].startswith("scheduler")
    assert sum(task["queued_by"] == task["worker"] for task in tasks[1:]) == 99
    assert {task["try_number"] for task in tasks} == {1}
    assert rows(stack, "select count(*) from task_try") == [(0,)]

    stack.kill("scheduler-1")
    run = stack.json("dags", "trigger", "chain", "--wait", "--timeout", "120")

    assert run["state"] == "success"
    assert all(task["state"] == "success" for task in run["tasks"])


def test_two_pools_are_never_overrun_by_1000_tasks(stack_factory: Any) -> None:
    stack = stack_factory(dags={"pools.py": POOLS}, schedulers=2, workers=[("default", 8)])
    assert stack.cli("pools", "set", "three", "3").returncode == 0
    assert stack.cli("pools", "set", "five", "5").returncode == 0
    parsed(stack, "pool_three", "pool_five")
    for name in ("pool_three", "pool_five"):
        assert stack.cli("dags", "trigger", name).returncode == 0

    eventually(
        lambda: rows(stack, "select count(*) from dag_run where state = 'success'") == [(2,)],
        timeout=180,
        interval=0.5,
        message=stack.logs,
    )

    held = rows(stack, "select pool, queued_at, ended_at from task_instance order by pool")
    assert len(held) == 1000
    assert most_at_once(held, "three") <= 3
    assert most_at_once(held, "five") <= 5
    assert rows(stack, "select count(*) > 0 from task_instance where queued_by = worker") == [(True,)]


def most_at_once(held: list[Any], pool: str) -> int:
    """The largest number of task instances of a pool that were queued or running at one instant. A successor takes over at the
    instant at which its predecessor ends, so ends are counted before beginnings."""
    changes = [(at, step) for name, begun, ended in held if name == pool for at, step in ((begun, 1), (ended, -1))]
    level = most = 0
    for _, step in sorted(changes):
        level += step
        most = max(most, level)
    return most
