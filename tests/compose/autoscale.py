"""`deploy/compose-autoscale` scales the workers from none to four and back, twice, while tasks of ten seconds run."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from typing import Any

from stack import CHECKOUT, Stack, eventually, expect, say

CONCURRENCY, DRAIN_S, COOLDOWN_S = 4, 300, 15
#: The largest number of worker-seconds, as a multiple of the time that the tasks took in as many slots.
MOST = 1.2
ENDED_WITHIN_S = 1800


def check_autoscale(stack: Stack) -> dict[str, Any]:
    stack.compose("up", "-d", "--no-deps", "--no-recreate", "--scale", "worker=0", "worker")
    command = [str(CHECKOUT / "deploy/compose-autoscale"), "worker", "--queue", "default", "-c", str(CONCURRENCY), "--max", "4",
               "--drain-time", str(DRAIN_S), "--cooldown", str(COOLDOWN_S)]  # fmt: skip
    say(" ".join(command))
    scaling = subprocess.Popen(command, env=stack.environment, stdout=sys.stderr, start_new_session=True)
    watch = Watch(stack)
    watch.start()
    try:
        first = one_wave(stack, "wave")
        worker_seconds, numbers = watch.worker_seconds, list(watch.numbers)
        one_wave(stack, "ripple")
    finally:
        watch.end()
        os.killpg(scaling.pid, signal.SIGTERM)
        scaling.wait()
    ideal = sum(first) / CONCURRENCY
    expect(worker_seconds <= MOST * ideal, f"{worker_seconds:.0f} worker-seconds, the ideal is {ideal:.0f}")
    expect(max(numbers) > 1, f"the numbers of workers were {numbers}")
    turns = [number for before, number, after in zip(numbers, numbers[1:], numbers[2:], strict=False) if before > number < after]
    expect(not turns, f"the number of workers fell and rose again: {numbers}")
    return {"tasks": len(first), "worker_seconds": round(worker_seconds), "ideal": round(ideal),
            "ratio": round(worker_seconds / ideal, 2), "numbers": watch.numbers}  # fmt: skip


def one_wave(stack: Stack, dag: str) -> list[float]:
    """A run of this DAG, from no worker to no worker. Returns the seconds of its tasks."""
    run_id = eventually_triggered(stack, dag)
    eventually(f"{dag} ended", lambda: shown(stack, dag, run_id)["state"] not in {"queued", "running"}, within_s=ENDED_WITHIN_S)
    eventually("no worker is left", lambda: stack.number_of("worker") == 0, within_s=600)
    tasks = shown(stack, dag, run_id)["tasks"]
    wrong = [task["task_id"] for task in tasks if (task["state"], task["try_number"]) != ("success", 1)]
    expect(not wrong, f"not successful in the first try: {wrong}")
    return [(datetime.fromisoformat(one["ended_at"]) - datetime.fromisoformat(one["started_at"])).total_seconds() for one in tasks]


def eventually_triggered(stack: Stack, dag: str) -> str:
    eventually(f"{dag} is parsed", lambda: stack.is_parsed(dag), within_s=300)
    return str(stack.paceline("dags", "trigger", dag)["run_id"])


def shown(stack: Stack, dag: str, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = stack.paceline("runs", "show", dag, run_id)
    return found


class Watch(threading.Thread):
    """Counts the containers of workers, and adds up their seconds."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self._ended = threading.Event()
        self.worker_seconds = 0.0
        #: The numbers of workers that ran, when they changed.
        self.numbers: list[int] = [0]

    def run(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(1):
            number, now = self._stack.number_of("worker"), time.monotonic()
            self.worker_seconds += number * (now - last)
            last = now
            if number != self.numbers[-1]:
                self.numbers.append(number)

    def end(self) -> None:
        self._ended.set()
        self.join()
