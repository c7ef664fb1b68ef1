"""What goes wrong, one function a fault: each is bounded, draws from its own dice, returns its recovery if it has one."""

import contextlib
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import psycopg2
from support.waiting import eventually

from chaos.proxy import Line
from chaos.recovery import Meter, Recovery
from chaos.stage import Lines, Stage, wait_until_redis_is_up, wait_until_up
from scheduler.dispatch import Message, Publisher
from scheduler.store import database, runs

#: Seconds to look for a victim that is at work.
LOOK_S = 5.0
#: Seconds for a worker that was told to stop, which may be stopped or cut off meanwhile.
ENDED_S = 90.0
#: Message of task instances that a worker has, had or is about to have.
OLD_MESSAGES = """
select t.id, t.dispatch_id::text, t.queue, r.dag_id, r.run_id, t.task_id, t.map_index
  from task_instance t join dag_run r on r.id = t.dag_run_id
 where t.dispatch_id is not null and t.state in ('queued', 'running', 'success', 'up_for_retry', 'deferred', 'up_for_reschedule')
 order by t.state = 'queued' desc, greatest(t.queued_at, t.ended_at) desc limit 80
"""
NEWEST_SCHEDULER = "select id from process where pid = %s and kind = 'scheduler' order by started_at desc limit 1"
BACKENDS = "select pid from pg_stat_activity where datname = current_database() and application_name like 'paceline%'"
TERMINATE = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
 where datname = current_database() and application_name like 'paceline%%' and random() < %s
"""


@dataclass(frozen=True, slots=True)
class Act:
    """What a fault has at hand. `longest_s` bounds how long something stays stopped or cut."""

    stage: Stage
    meter: Meter
    dice: random.Random
    longest_s: float

    def pause_s(self) -> float:
        return min(self.longest_s, self.dice.choice((0.5, 0.5, 2.0, 2.0, 5.0, 5.0, 12.0, 25.0, 60.0)))


Fault = Callable[[Act], "Recovery | None"]


def scheduler_kill(act: Act) -> Recovery:
    victim = act.dice.choice(act.stage.up(act.stage.schedulers))
    ((name,),) = act.meter.ask(NEWEST_SCHEDULER, act.stage.stack.pid(victim))
    at = time.time()
    act.stage.signal(victim, signal.SIGKILL)
    run_id = _trigger(act, "probe")
    return Recovery("scheduler", [max(act.meter.all_sent(name, at, act.stage.redis), act.meter.probed(run_id, at))])


def scheduler_stop(act: Act) -> None:
    with act.stage.stopped(act.stage.stack.pid(act.dice.choice(act.stage.schedulers))):
        time.sleep(act.pause_s())


def worker_kill(act: Act) -> Recovery:
    victim = act.dice.choice(act.stage.workers)
    tries = _at_work(act, victim)
    at = time.time()
    act.stage.signal(victim, signal.SIGKILL)
    return Recovery("worker", act.meter.next_tries(tries, at))


def worker_stop(act: Act) -> None:
    """The parent alone, or with its children, as a machine that is suspended."""
    worker = act.dice.choice(act.stage.workers)
    pids = [act.stage.stack.pid(worker)]
    if act.dice.random() < 0.5:
        pids += [child.pid for child in act.stage.children(worker)]
    with contextlib.ExitStack() as undo:
        for pid in pids:
            undo.enter_context(act.stage.stopped(pid))
        time.sleep(act.pause_s())


def child_kill(act: Act) -> None:
    for _ in range(act.dice.randint(1, 3)):
        _at_work(act, worker := act.dice.choice(act.stage.workers))
        children = act.stage.children(worker)
        if children:
            with contextlib.suppress(psutil.NoSuchProcess):
                act.dice.choice(children).kill()


def child_stop(act: Act) -> None:
    children = act.stage.children(act.dice.choice(act.stage.workers))
    if children:
        with act.stage.stopped(act.dice.choice(children).pid):
            time.sleep(act.pause_s())


def waiter_kill(act: Act) -> None:
    act.stage.signal("waiter-1", signal.SIGKILL)


def scale_down(act: Act) -> None:
    """SIGTERM under load; the Supervisor starts it again, which is the scale-up."""
    worker = act.dice.choice(act.stage.up(act.stage.workers))
    _at_work(act, worker)
    pid = act.stage.stack.pid(worker)
    act.stage.signal(worker, signal.SIGTERM)
    eventually(lambda: not psutil.pid_exists(pid), timeout=ENDED_S)


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
    return Recovery("redis", [act.meter.all_started(ids, seen, at)])


def redis_flush(act: Act) -> Recovery:
    ids, seen = _fill_queue(act)
    at = time.time()
    with act.stage.redis() as client:
        client.flushall()
    return Recovery("redis", [act.meter.all_started(ids, seen, at)])


def redis_client_kill(act: Act) -> None:
    for _ in range(act.dice.randint(1, 5)):
        with act.stage.redis() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(act.dice.choice((0.0, 0.1, 0.5)))


def postgres_immediate(act: Act) -> Recovery:
    return _restart_postgres(act, signal.SIGQUIT)


def postgres_fast(act: Act) -> Recovery:
    return _restart_postgres(act, signal.SIGINT)


def postgres_backend(act: Act) -> Recovery:
    """One backend is killed, as when memory runs out: the server ends all others, recovers, and stays the same process."""
    with contextlib.closing(psycopg2.connect(act.stage.settings.database_url)) as witness, witness.cursor() as cursor:
        cursor.execute(BACKENDS)
        os.kill(act.dice.choice(cursor.fetchall())[0], signal.SIGKILL)
        with contextlib.suppress(psycopg2.OperationalError):
            cursor.execute("select pg_sleep(30)")
    return Recovery("postgres", [act.meter.first_move(wait_until_up(act.stage.settings.database_url))])


def postgres_terminate(act: Act) -> None:
    share = act.dice.choice((0.3, 1.0))
    for _ in range(act.dice.randint(1, 4)):
        act.meter.ask(TERMINATE, share)
        time.sleep(act.dice.choice((0.0, 0.2)))


def half_open_scheduler_postgres(act: Act) -> None:
    _half_open(act, act.stage.schedulers, lambda lines: [lines.postgres])


def half_open_scheduler_redis(act: Act) -> None:
    _half_open(act, act.stage.schedulers, lambda lines: [lines.redis])


def half_open_worker_postgres(act: Act) -> None:
    _half_open(act, act.stage.workers, lambda lines: [lines.postgres])


def half_open_worker_redis(act: Act) -> None:
    _half_open(act, act.stage.workers, lambda lines: [lines.redis])


def half_open_both(act: Act) -> None:
    _half_open(act, sorted(act.stage.lines), lambda lines: [lines.postgres, lines.redis])


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


#: Those that return a recovery.
MEASURED: frozenset[Fault] = frozenset(
    {scheduler_kill, worker_kill, redis_empty, redis_flush, postgres_immediate, postgres_fast, postgres_backend}
)
HALF_OPEN: tuple[Fault, ...] = (
    half_open_scheduler_postgres, half_open_scheduler_redis, half_open_worker_postgres, half_open_worker_redis, half_open_both,
)  # fmt: skip
#: As often in a bag as here; a bag is emptied in a drawn order, then filled again.
BAG: tuple[Fault, ...] = (
    scheduler_kill, scheduler_kill, scheduler_stop, worker_kill, worker_kill, worker_stop, child_kill, child_kill, child_stop,
    waiter_kill, scale_down, scale_down, redis_kill, redis_empty, redis_flush, redis_client_kill, postgres_immediate,
    postgres_fast, postgres_backend, postgres_terminate, delivered_twice, *HALF_OPEN,
)  # fmt: skip


@dataclass
class Happened:
    """One fault as the report knows it. `alone`: nothing else went wrong meanwhile, so its recovery counts."""

    number: int
    name: str
    at: str
    alone: bool
    seconds: float = 0.0
    #: By time.monotonic(); for ever ahead as long as it goes on.
    ended: float = float("inf")
    recovery: Recovery | None = None
    error: str | None = None


def perform(fault: Fault, act: Act, happened: Happened) -> threading.Thread:
    """Start it in a thread; what it found is in `happened` at its end."""

    def work() -> None:
        started = time.monotonic()
        try:
            happened.recovery = fault(act)
        except Exception as error:
            # Two faults can be in each other's way; what matters is judged elsewhere.
            happened.error = f"{type(error).__name__}: {error}"
        happened.ended = time.monotonic()
        happened.seconds = happened.ended - started

    thread = threading.Thread(target=work, name=happened.name, daemon=True)
    thread.start()
    return thread


def _half_open(act: Act, names: list[str], which: Callable[[Lines], list[Line]]) -> None:
    """One of these processes is cut off, and nobody tells it: nothing passes, or only the answers are lost."""
    cut = which(act.stage.lines[act.dice.choice(act.stage.up(names))])
    reset, requests = act.dice.random() < 0.5, act.dice.random() < 0.7
    before = [line.swallowed for line in cut]
    for line in cut:
        act.stage.proxy.do(lambda line=line: line.cut(requests=requests))
    try:
        time.sleep(act.pause_s())
        deadline = time.monotonic() + LOOK_S
        while not all(line.swallowed > had for line, had in zip(cut, before, strict=True)):
            if time.monotonic() > deadline:
                raise TimeoutError("the process sent and got nothing while it was cut off")
            time.sleep(0.05)
    finally:
        for line in cut:
            act.stage.proxy.do(lambda line=line: line.mend(reset=reset))


def _at_work(act: Act, worker: str) -> dict[int, int]:
    """Wait a moment for a worker to have something to lose; what it has."""
    deadline = time.monotonic() + LOOK_S
    while not (found := act.meter.running_on(worker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _fill_queue(act: Act) -> tuple[list[int], float]:
    """A heap of tasks, of which some wait in Redis just now: which, and when that was seen."""
    _trigger(act, "burst")
    deadline = time.monotonic() + LOOK_S
    while True:
        seen = time.time()
        found = act.meter.queued()
        if len(found) >= 10 or time.monotonic() > deadline:
            return found, seen
        time.sleep(0.01)


def _restart_postgres(act: Act, number: int) -> Recovery:
    act.stage.signal_server("postgres", number)
    while act.stage.servers.alive("postgres"):
        time.sleep(0.05)
    up = wait_until_up(act.stage.settings.database_url)
    return Recovery("postgres", [act.meter.first_move(up)])


def _trigger(act: Act, dag_id: str) -> str:
    engine = database.create(act.stage.settings, application="chaos")
    run_id = f"{dag_id}-{uuid.uuid4().hex[:8]}"
    try:
        runs.trigger(engine, dag_id, run_id=run_id)
    finally:
        engine.dispose()
    return run_id
