"""Faults of PostgreSQL and Redis: killed, restarted, emptied, frozen, read-only; and messages that are delivered twice."""

import contextlib
import os
import signal
import time

import psycopg2

from chaos.cluster import wait_until_redis_is_up, wait_until_up
from chaos.fault_context import LOOK_S, FaultContext
from chaos.recovery import Recovery
from chaos.shapes import FEW
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher

#: Task instances that wait in Redis when it loses them, of the few that `parallelism` lets be queued at a time.
ENOUGH = 3
#: Message of task instances that a worker has, had or is about to have.
OLD_MESSAGES = """
select t.id, t.dispatch_id::text, t.queue, r.dag_id, r.run_id, t.task_id, t.map_index
  from task_instance t join dag_run r on r.id = t.dag_run_id
 where t.dispatch_id is not null and t.state in ('queued', 'running', 'success', 'up_for_retry', 'deferred', 'up_for_reschedule')
 order by t.state = 'queued' desc, greatest(t.queued_at, t.ended_at) desc limit 80
"""
BACKENDS = "select pid from pg_stat_activity where datname = current_database() and application_name like 'paceline%'"
TERMINATE = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
 where datname = current_database() and application_name like 'paceline%%' and random() < %s
"""


def redis_kill(context: FaultContext) -> None:
    """Its data comes back as of a moment ago: messages taken meanwhile are delivered a second time."""
    with context.cluster.redis() as client:
        client.save()
    time.sleep(context.rng.choice((0.0, 0.2)))
    context.cluster.signal_server("redis", signal.SIGKILL)
    wait_until_redis_is_up(context.cluster)


def redis_empty(context: FaultContext) -> Recovery:
    """Killed, and started again without anything."""
    ids, seen = _fill_queue(context)
    at = time.time()
    (context.cluster.broker.run_folder / "dump.rdb").unlink(missing_ok=True)
    context.cluster.signal_server("redis", signal.SIGKILL)
    return Recovery("redis", [context.meter.all_started(ids, seen, at)] if ids else [])


def redis_flush(context: FaultContext) -> Recovery:
    ids, seen = _fill_queue(context)
    at = time.time()
    with context.cluster.redis() as client:
        client.flushall()
    return Recovery("redis", [context.meter.all_started(ids, seen, at)] if ids else [])


def redis_client_kill(context: FaultContext) -> None:
    for _ in range(context.rng.randint(1, 5)):
        with context.cluster.redis() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(context.rng.choice((0.0, 0.1, 0.5)))


def redis_frozen(context: FaultContext) -> None:
    """SIGSTOP: connections stay, and nothing is answered. Workers go on, so none of their tries may be lost."""
    with context.cluster.stopped(context.cluster.servers.pid("redis")):
        time.sleep(context.pause_s())


def postgres_read_only(context: FaultContext) -> None:
    """Every transaction is refused with 25006, as by a standby; connections are ended when it begins and when it is over."""
    with context.cluster.postgres_lock, context.cluster.history.outage():
        try:
            _configured(context, "set default_transaction_read_only = on")
            time.sleep(context.pause_s())
        finally:
            context.retry_until_done(lambda: _configured(context, "reset default_transaction_read_only"))


def slow_disk(context: FaultContext) -> None:
    """Commits that wait for the disk wait longer, up to some seconds: for a standby that does not answer."""
    with context.cluster.postgres_lock, context.cluster.history.outage():
        try:
            for _ in range(context.rng.randint(1, 6)):
                _configured(context, "set synchronous_standby_names = nobody", terminate=False)
                time.sleep(context.rng.choice((0.1, 0.5, 1.0, 3.0)))
                _configured(context, "reset synchronous_standby_names", terminate=False)
                time.sleep(context.rng.choice((0.0, 0.2)))
        finally:
            context.retry_until_done(lambda: _configured(context, "reset synchronous_standby_names", terminate=False))


def postgres_immediate(context: FaultContext) -> Recovery:
    return _restart_postgres(context, signal.SIGQUIT)


def postgres_fast(context: FaultContext) -> Recovery:
    return _restart_postgres(context, signal.SIGINT)


def postgres_backend(context: FaultContext) -> Recovery:
    """One backend is killed, as when memory runs out: the server ends all others, recovers, and stays the same process."""
    with context.cluster.postgres_lock, context.cluster.history.outage():
        with contextlib.closing(context.cluster.postgres.connect()) as witness, witness.cursor() as cursor:
            cursor.execute(BACKENDS)
            os.kill(context.rng.choice(cursor.fetchall())[0], signal.SIGKILL)
            with contextlib.suppress(psycopg2.OperationalError):
                cursor.execute("select pg_sleep(30)")
        up = wait_until_up(context.cluster.settings.database_url)
    return Recovery("postgres", [context.meter.first_move(up)])


def postgres_terminate(context: FaultContext) -> None:
    share = context.rng.choice((0.3, 1.0))
    for _ in range(context.rng.randint(1, 4)):
        context.meter.ask(TERMINATE, share)
        time.sleep(context.rng.choice((0.0, 0.2)))


def delivered_twice(context: FaultContext) -> None:
    """Messages of queued, running and ended task instances are delivered again, in another order."""
    publisher = Publisher(context.cluster.settings)
    for _ in range(3):
        rows = context.meter.ask(OLD_MESSAGES)
        context.rng.shuffle(rows)
        with contextlib.suppress(OSError):
            publisher.publish(
                [
                    Message(ti_id=ti, dispatch_id=dispatch, queue=queue, dag_id=dag, run_id=run, task_id=task, map_index=index)
                    for ti, dispatch, queue, dag, run, task, index in rows
                ]
            )
        time.sleep(0.3)
    publisher.close()


def _configured(context: FaultContext, change: str, *, terminate: bool = True) -> None:
    """Change a setting of the running server; with `terminate`, all clients must connect again."""
    with contextlib.closing(context.cluster.postgres.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"alter system {change}")
        cursor.execute("select pg_reload_conf()")
        if terminate:
            cursor.execute(TERMINATE, (1.0,))


def _fill_queue(context: FaultContext) -> tuple[list[int], float]:
    """A heap of tasks, of which some wait in Redis just now: which, and when that was seen."""
    context.trigger("burst")
    deadline = time.monotonic() + LOOK_S
    while True:
        seen = time.time()
        found = context.meter.queued(FEW)
        if len(found) >= ENOUGH or time.monotonic() > deadline:
            return found, seen
        time.sleep(0.01)


def _restart_postgres(context: FaultContext, number: int) -> Recovery:
    with context.cluster.postgres_lock, context.cluster.history.outage():
        name = context.cluster.postgres.name
        context.cluster.signal_server(name, number)
        while context.cluster.servers.alive(name):
            time.sleep(0.05)
        up = wait_until_up(context.cluster.settings.database_url)
    return Recovery("postgres", [context.meter.first_move(up)])
