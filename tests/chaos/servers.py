"""Faults of PostgreSQL and Redis: killed, restarted, emptied, frozen, read-only; and messages that come twice."""

import contextlib
import os
import signal
import time

import psycopg2

from chaos.act import LOOK_S, Act
from chaos.recovery import Recovery
from chaos.shapes import FEW
from chaos.stage import wait_until_redis_is_up, wait_until_up
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


def redis_kill(act: Act) -> None:
    """What it held comes back as it was a moment ago: messages taken meanwhile are there a second time."""
    with act.stage.redis() as client:
        client.save()
    time.sleep(act.dice.choice((0.0, 0.2)))
    act.stage.signal_server("redis", signal.SIGKILL)
    wait_until_redis_is_up(act.stage)


def redis_empty(act: Act) -> Recovery:
    """Killed, and started again without anything."""
    ids, seen = _fill_queue(act)
    at = time.time()
    (act.stage.broker.run_folder / "dump.rdb").unlink(missing_ok=True)
    act.stage.signal_server("redis", signal.SIGKILL)
    return Recovery("redis", [act.meter.all_started(ids, seen, at)] if ids else [])


def redis_flush(act: Act) -> Recovery:
    ids, seen = _fill_queue(act)
    at = time.time()
    with act.stage.redis() as client:
        client.flushall()
    return Recovery("redis", [act.meter.all_started(ids, seen, at)] if ids else [])


def redis_client_kill(act: Act) -> None:
    for _ in range(act.dice.randint(1, 5)):
        with act.stage.redis() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(act.dice.choice((0.0, 0.1, 0.5)))


def redis_frozen(act: Act) -> None:
    """SIGSTOP: connections stay, and nothing is answered. Workers go on, so none of their tries may be lost."""
    with act.stage.stopped(act.stage.servers.pid("redis")):
        time.sleep(act.pause_s())


def postgres_read_only(act: Act) -> None:
    """Every transaction is refused with 25006, as by a standby; connections are ended when it begins and when it is over."""
    with act.stage.postgres_lock, act.stage.book.outage():
        try:
            _configured(act, "set default_transaction_read_only = on")
            time.sleep(act.pause_s())
        finally:
            act.surely(lambda: _configured(act, "reset default_transaction_read_only"))


def slow_disk(act: Act) -> None:
    """Commits that wait for the disk wait longer, up to some seconds: for a standby that does not answer."""
    with act.stage.postgres_lock, act.stage.book.outage():
        try:
            for _ in range(act.dice.randint(1, 6)):
                _configured(act, "set synchronous_standby_names = nobody", terminate=False)
                time.sleep(act.dice.choice((0.1, 0.5, 1.0, 3.0)))
                _configured(act, "reset synchronous_standby_names", terminate=False)
                time.sleep(act.dice.choice((0.0, 0.2)))
        finally:
            act.surely(lambda: _configured(act, "reset synchronous_standby_names", terminate=False))


def postgres_immediate(act: Act) -> Recovery:
    return _restart_postgres(act, signal.SIGQUIT)


def postgres_fast(act: Act) -> Recovery:
    return _restart_postgres(act, signal.SIGINT)


def postgres_backend(act: Act) -> Recovery:
    """One backend is killed, as when memory runs out: the server ends all others, recovers, and stays the same process."""
    with act.stage.postgres_lock, act.stage.book.outage():
        with contextlib.closing(act.stage.postgres.connect()) as witness, witness.cursor() as cursor:
            cursor.execute(BACKENDS)
            os.kill(act.dice.choice(cursor.fetchall())[0], signal.SIGKILL)
            with contextlib.suppress(psycopg2.OperationalError):
                cursor.execute("select pg_sleep(30)")
        up = wait_until_up(act.stage.settings.database_url)
    return Recovery("postgres", [act.meter.first_move(up)])


def postgres_terminate(act: Act) -> None:
    share = act.dice.choice((0.3, 1.0))
    for _ in range(act.dice.randint(1, 4)):
        act.meter.ask(TERMINATE, share)
        time.sleep(act.dice.choice((0.0, 0.2)))


def delivered_twice(act: Act) -> None:
    """Messages of what is queued, runs or ran come again, in another order."""
    publisher = Publisher(act.stage.settings)
    for _ in range(3):
        rows = act.meter.ask(OLD_MESSAGES)
        act.dice.shuffle(rows)
        with contextlib.suppress(OSError):
            publisher.publish(
                [
                    Message(ti_id=ti, dispatch_id=dispatch, queue=queue, dag_id=dag, run_id=run, task_id=task, map_index=index)
                    for ti, dispatch, queue, dag, run, task, index in rows
                ]
            )
        time.sleep(0.3)
    publisher.close()


def _configured(act: Act, change: str, *, terminate: bool = True) -> None:
    """Change a setting of the running server; with `terminate`, whoever is connected comes anew."""
    with contextlib.closing(act.stage.postgres.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"alter system {change}")
        cursor.execute("select pg_reload_conf()")
        if terminate:
            cursor.execute(TERMINATE, (1.0,))


def _fill_queue(act: Act) -> tuple[list[int], float]:
    """A heap of tasks, of which some wait in Redis just now: which, and when that was seen."""
    act.trigger("burst")
    deadline = time.monotonic() + LOOK_S
    while True:
        seen = time.time()
        found = act.meter.queued(FEW)
        if len(found) >= ENOUGH or time.monotonic() > deadline:
            return found, seen
        time.sleep(0.01)


def _restart_postgres(act: Act, number: int) -> Recovery:
    with act.stage.postgres_lock, act.stage.book.outage():
        name = act.stage.postgres.name
        act.stage.signal_server(name, number)
        while act.stage.servers.alive(name):
            time.sleep(0.05)
        up = wait_until_up(act.stage.settings.database_url)
    return Recovery("postgres", [act.meter.first_move(up)])
