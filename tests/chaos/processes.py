"""Faults of processes: killed, stopped, scaled down."""

import contextlib
import signal
import time

import psutil
from support.waiting import eventually

from chaos.act import LOOK_S, Act
from chaos.recovery import Recovery

#: Seconds for a worker that was told to stop, which may be stopped or cut off meanwhile.
ENDED_S = 90.0
NEWEST_SCHEDULER = "select id from process where pid = %s and kind = 'scheduler' order by started_at desc limit 1"


def scheduler_kill(act: Act) -> Recovery:
    victim = act.dice.choice(act.stage.up(act.stage.schedulers))
    ((name,),) = act.meter.ask(NEWEST_SCHEDULER, act.stage.stack.pid(victim))
    at = time.time()
    act.stage.signal(victim, signal.SIGKILL)
    run_id = act.trigger("probe")
    return Recovery("scheduler", [max(act.meter.all_sent(name, at, act.stage.redis), act.meter.probed(run_id, at))])


def scheduler_stop(act: Act) -> None:
    with act.stage.stopped(act.stage.stack.pid(act.dice.choice(act.stage.schedulers))):
        time.sleep(act.pause_s())


def worker_kill(act: Act) -> Recovery:
    victim, tries = _busy(act)
    at = time.time()
    act.stage.signal(victim, signal.SIGKILL)
    return Recovery("worker", act.meter.next_tries(tries, at))


def _busy(act: Act) -> tuple[str, dict[int, int]]:
    """The worker that runs most of what has a next try that can be measured; any, if none runs such a thing for a while."""
    order = act.dice.sample(act.stage.workers, len(act.stage.workers))
    deadline = time.monotonic() + LOOK_S
    while time.monotonic() < deadline:
        tries = {worker: act.meter.running_on(worker) for worker in order}
        if any(tries.values()):
            return max(tries.items(), key=lambda one: len(one[1]))
        time.sleep(0.05)
    return order[0], {}


def worker_stop(act: Act) -> None:
    """The parent alone, or with its children, as a machine that is suspended."""
    worker = act.dice.choice(act.stage.workers)
    pids = [act.stage.stack.pid(worker)]
    if act.dice.random() < 0.5:
        pids += [child.pid for child in act.stage.children(worker)]
    with contextlib.ExitStack() as undo:
        for pid in pids:
            undo.enter_context(act.stage.stopped(pid, worker))
        time.sleep(act.pause_s())


def child_kill(act: Act) -> None:
    for _ in range(act.dice.randint(1, 3)):
        act.at_work(worker := act.dice.choice(act.stage.workers))
        children = act.stage.children(worker)
        if children:
            child = act.dice.choice(children)
            with act.stage.book.harm("SIGKILL", worker, child.pid), contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


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
    act.at_work(worker)
    pid = act.stage.stack.pid(worker)
    with act.stage.book.harm("SIGTERM", worker):
        act.stage.signal(worker, signal.SIGTERM)
        eventually(lambda: not psutil.pid_exists(pid), timeout=ENDED_S)
