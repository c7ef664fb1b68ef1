"""Health and heartbeats of real processes: what hangs is found, and neither a broker nor a lock delays a heartbeat."""

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import psycopg2
import pytest
import redis
from support.processes import free_port, health
from support.servers import RedisServer
from support.stacks import Stack, StackFactory
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
    assert set(health(port)[1]["parts"]) == {"loop", "heartbeat", "database", "dag_files", "bundles", "broker", "settings"}
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


@pytest.mark.long
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


#: Shorter than a client waits for a Redis that does not answer.
TIMEOUT_S = 4.0
FROZEN_S = 6.0
TIMES = {
    f"PACELINE_{name}": str(value)
    for name, value in {
        "SCHEDULER_SCHEDULER_HEARTBEAT_SEC": 0.3, "SCHEDULER_SCHEDULER_HEALTH_CHECK_THRESHOLD": TIMEOUT_S,
        "WORKER_HEARTBEAT_SEC": 0.3, "WORKER_HEARTBEAT_TIMEOUT": TIMEOUT_S,
        "WAITER_HEARTBEAT_SEC": 0.3, "WAITER_HEARTBEAT_TIMEOUT": TIMEOUT_S,
    }.items()
}  # fmt: skip
#: The waiter has a trigger, which it checks with each of its heartbeats.
WAITS = """
from datetime import timedelta
from paceline import dag
from paceline.sensors import WaitSensor

@dag(schedule=None)
def waits():
    WaitSensor(task_id="long", time_to_wait=timedelta(hours=1), deferrable=True)
waits()
"""
BEATS = """
create table beats (id text, at timestamptz);
create function beat() returns trigger language plpgsql security definer as $$ begin
    insert into beats values (new.id, new.heartbeat_at);
    return null;
end $$;
create trigger beat after update of heartbeat_at on process for each row execute function beat();
"""


def rows(stack: Stack, statement: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(psycopg2.connect(stack.settings.database_url)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        found = cursor.fetchall() if cursor.description else []
        connection.commit()
        return found


@contextlib.contextmanager
def stopped(pid: int) -> Any:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def beating(stack: Stack, seconds: float) -> Callable[[], bool]:
    return lambda: rows(stack, f"select max(at) - min(at) > interval '{seconds} s' from beats group by id") == [(True,)] * 3


@contextlib.contextmanager
def locked(stack: Stack) -> Any:
    """The rows that every process reads in its duties are locked."""
    with contextlib.closing(psycopg2.connect(stack.settings.database_url)) as connection, connection.cursor() as cursor:
        cursor.execute("lock table dag_run, task_instance, deferral, xcom in access exclusive mode")
        yield
        connection.rollback()


@pytest.mark.long
@pytest.mark.parametrize("held_up_by", ["redis", "locks"])
def test_a_heartbeat_is_not_delayed_by_locks_or_a_frozen_broker(
    stack_factory: StackFactory, redis_server: RedisServer, held_up_by: str
) -> None:
    stack = stack_factory({"waits.py": WAITS}, schedulers=1, workers=[("default", 1)], waiters=1, env=TIMES)
    with contextlib.closing(redis.Redis(unix_socket_path=str(redis_server.embedded.socket))) as client:
        pid = int(client.info("server")["process_id"])
    eventually(
        lambda: rows(stack, "select count(*) from process where stopped_at is null") == [(3,)], timeout=120, message=stack.logs
    )
    eventually(lambda: stack.cli("dags", "trigger", "waits").returncode == 0, timeout=60, interval=0.5, message=stack.logs)
    eventually(
        lambda: rows(stack, "select count(*) from deferral where waiter is not null") == [(1,)], timeout=60, message=stack.logs
    )
    rows(stack, BEATS)
    eventually(beating(stack, 0.1), timeout=60, message=stack.logs)

    with stopped(pid) if held_up_by == "redis" else locked(stack):
        eventually(beating(stack, FROZEN_S), timeout=120, message=stack.logs)

    gaps = rows(
        stack,
        "select id, extract(epoch from max(gap))::float from"
        " (select id, at - lag(at) over (partition by id order by at) as gap from beats) each group by id",
    )
    assert max(gap for _, gap in gaps) < TIMEOUT_S, gaps
    assert rows(stack, "select count(*), count(stopped_at) from process") == [(3, 0)]
