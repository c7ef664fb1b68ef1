"""The detection of a dead worker by the process beside it."""

import signal
import subprocess
import sys
import time

LOOKS = """
import os, signal
from types import SimpleNamespace
from workers.supervision.task_killer import PARENT_DIED, TaskKiller

killer = TaskKiller(SimpleNamespace())
killer._worker = os.getppid()
signal.pthread_sigmask(signal.SIG_BLOCK, {PARENT_DIED})
print("looks", flush=True)
while not killer._worker_died(0.02):
    pass
print("died", flush=True)
"""
STOPS = 10


def test_a_stopped_and_continued_killer_does_not_detect_the_end_of_its_worker() -> None:
    process = subprocess.Popen([sys.executable, "-c", LOOKS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "looks\n"

    for _ in range(STOPS):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)  # longer than one look
        process.send_signal(signal.SIGCONT)
        time.sleep(0.01)

    assert process.poll() is None
    process.kill()
    assert process.communicate() == ("", None)
