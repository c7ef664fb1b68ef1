"""Faults of the disk that holds the logs: full, or emptied by somebody."""

import contextlib
import resource
import shutil
import time

import psutil

from chaos.act import Act


def disk_full(act: Act) -> None:
    """No process of a worker can write to any file: neither the log of a try nor its own. No try may be lost for that."""
    worker = act.dice.choice(act.stage.up(act.stage.workers))
    pid = act.stage.stack.pid(worker)
    try:
        _limit(pid, 0)
        time.sleep(act.pause_s())
    finally:
        _limit(pid, resource.RLIM_INFINITY)


def logs_deleted(act: Act) -> None:
    """All of them, with their folders, while tasks write."""
    for _ in range(act.dice.randint(1, 5)):
        for folder in act.stage.settings.logs_folder.glob("*"):
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(act.dice.choice((0.0, 0.3, 1.0)))


def _limit(pid: int, size: int) -> None:
    """For a worker and its children; those that start meanwhile inherit it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for one in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
