"""The part `events`: the cost of the events of tasks for Flower while a process listens. Runs with and without them alternate."""

import contextlib
import threading
from collections.abc import Iterator
from statistics import median
from typing import Any

from celery import Celery

from bench import measure as measuring
from bench import shapes
from bench.measure import Measured
from bench.options import Options, Piece
from bench.stack import Stack, StackError
from scheduler.messaging.publisher import celery_app

#: Attempts to reach the worker by remote control, of a second each.
ATTEMPTS = 20
LIMIT_S = 60.0
#: Seconds in which the thread that listens must end.
ANSWER_S = 20.0


def measure(options: Options) -> Piece:
    """`events`: with the events of tasks on, divided by without: tasks/s and CPU per task of one shape, the medians of pairs of
    runs. The CPU is that of all processes of the stack, without the one that listens.
    """
    shape = (shapes.small() if options.small else shapes.full())["wide"]
    pairs: list[tuple[Measured, Measured]] = []
    with Stack(shape.files) as stack, _listening(celery_app(stack.settings)) as (app, received):

        def run(on: bool) -> Measured:
            _switch(app, on)
            before = received[0]
            measured = measuring.run(stack, shape)
            if on:
                stack.wait(lambda: received[0] - before >= measured.tasks, LIMIT_S, "an event of each task")
            return measured

        run(True)  # warm-up
        for iteration in range(options.iterations):
            pairs.append(measuring.in_turns(iteration, lambda: run(True), lambda: run(False)))
            options.say(f"with events {pairs[-1][0].tasks_per_s:.0f} tasks/s, without {pairs[-1][1].tasks_per_s:.0f}")
    return {"events": _summary(pairs)}


def _summary(pairs: list[tuple[Measured, Measured]]) -> dict[str, Any]:
    """Seconds of CPU per task with and without events, and the ratios of pairs."""
    cpu = [tuple(measured.cpu_s_per_task["total"] - measured.cpu_s_per_task["client"] for measured in pair) for pair in pairs]
    return {
        "tasks": pairs[0][0].tasks,
        "tasks_per_s_ratio": round(median(on.tasks_per_s / off.tasks_per_s for on, off in pairs), 4),
        "cpu_per_task_ratio": round(median(on / off for on, off in cpu), 4),
        "cpu_s_per_task": {"on": round(median(on for on, _ in cpu), 6), "off": round(median(off for _, off in cpu), 6)},
    }


def _switch(app: Celery, on: bool) -> None:
    """Turn the events of tasks on or off in the worker, as Flower does."""
    switch = app.control.enable_events if on else app.control.disable_events
    if not any(switch(reply=True, timeout=1) for _ in range(ATTEMPTS)):
        raise StackError(f"the worker did not answer within {ATTEMPTS} s")


@contextlib.contextmanager
def _listening(app: Celery) -> Iterator[tuple[Celery, list[int]]]:
    """Listen to events in a thread; the app, and the number of tasks that have ended so far."""
    received = [0]

    def count(_: object) -> None:
        received[0] += 1

    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"task-succeeded": count})
        thread = threading.Thread(target=lambda: receiver.capture(limit=None, timeout=None, wakeup=False), daemon=True)
        thread.start()
        try:
            yield app, received
        finally:
            receiver.should_stop = True
            thread.join(ANSWER_S)
