"""Faults of processes: killed, stopped, scaled down."""

import contextlib
import signal
import time

import psutil
from support.waiting import eventually

from chaos.fault_context import LOOK_S, FaultContext
from chaos.recovery import Recovery

#: Seconds until a worker ends after SIGTERM. It may be stopped or cut off meanwhile.
ENDED_S = 90.0
FREE_TRIGGER = "select 1 from deferral where waiter is null limit 1"
NEWEST_SCHEDULER = "select id from process where pid = %s and kind = 'scheduler' order by started_at desc limit 1"


def scheduler_kill(context: FaultContext) -> Recovery:
    victim = context.rng.choice(context.cluster.up(context.cluster.schedulers))
    ((name,),) = context.meter.ask(NEWEST_SCHEDULER, context.cluster.stack.pid(victim))
    at = time.time()
    context.cluster.signal(victim, signal.SIGKILL)
    run_id = context.trigger("probe")
    return Recovery("scheduler", [max(context.meter.all_sent(name, at, context.cluster.redis), context.meter.probed(run_id, at))])


def scheduler_stop(context: FaultContext) -> None:
    with context.cluster.stopped(context.cluster.stack.pid(context.rng.choice(context.cluster.schedulers))):
        time.sleep(context.pause_s())


def worker_kill(context: FaultContext) -> Recovery:
    victim, tries = _busy(context)
    at = time.time()
    context.cluster.signal(victim, signal.SIGKILL)
    return Recovery("worker", context.meter.next_tries(tries, at))


def _busy(context: FaultContext) -> tuple[str, dict[int, int]]:
    """The worker with most tasks whose next try can be measured; any worker, if none has such a task for a while."""
    order = context.rng.sample(context.cluster.workers, len(context.cluster.workers))
    deadline = time.monotonic() + LOOK_S
    while time.monotonic() < deadline:
        tries = {worker: context.meter.running_on(worker) for worker in order}
        if any(tries.values()):
            return max(tries.items(), key=lambda one: len(one[1]))
        time.sleep(0.05)
    return order[0], {}


def worker_stop(context: FaultContext) -> None:
    """The parent alone, or with its children, as a machine that is suspended."""
    worker = context.rng.choice(context.cluster.workers)
    pids = [context.cluster.stack.pid(worker)]
    if context.rng.random() < 0.5:
        pids += [child.pid for child in context.cluster.children(worker)]
    with contextlib.ExitStack() as undo:
        for pid in pids:
            undo.enter_context(context.cluster.stopped(pid, worker))
        time.sleep(context.pause_s())


def child_kill(context: FaultContext) -> None:
    for _ in range(context.rng.randint(1, 3)):
        context.wait_for_tasks(worker := context.rng.choice(context.cluster.workers))
        children = context.cluster.children(worker)
        if children:
            child = context.rng.choice(children)
            with context.cluster.history.harm("SIGKILL", worker, child.pid), contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def child_stop(context: FaultContext) -> None:
    children = context.cluster.children(context.rng.choice(context.cluster.workers))
    if children:
        with context.cluster.stopped(context.rng.choice(children).pid):
            time.sleep(context.pause_s())


def waiter_kill(context: FaultContext) -> None:
    context.cluster.signal("waiter-1", signal.SIGKILL)


def waiter_ended_in_a_claim(context: FaultContext) -> None:
    """SIGTERM or SIGKILL as soon as a trigger can be claimed, several times."""
    for _ in range(context.rng.randint(2, 4)):
        context.trigger("c17_deferral")
        deadline = time.monotonic() + LOOK_S
        while not context.meter.ask(FREE_TRIGGER) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(context.rng.uniform(0, 0.02))
        context.cluster.signal("waiter-1", context.rng.choice((signal.SIGTERM, signal.SIGKILL)))
        eventually(lambda: context.cluster.stack.alive("waiter-1"), timeout=ENDED_S)


def scale_down(context: FaultContext) -> None:
    """SIGTERM under load; the Supervisor starts it again, which is the scale-up."""
    worker = context.rng.choice(context.cluster.up(context.cluster.workers))
    context.wait_for_tasks(worker)
    pid = context.cluster.stack.pid(worker)
    with context.cluster.history.harm("SIGTERM", worker):
        context.cluster.signal(worker, signal.SIGTERM)
        eventually(lambda: not psutil.pid_exists(pid), timeout=ENDED_S)
