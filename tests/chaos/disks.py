"""Faults of the disk that holds the logs: full, or emptied."""

import contextlib
import resource
import shutil
import time

import psutil

from chaos.fault_context import FaultContext


def disk_full(context: FaultContext) -> None:
    """No process of a worker can write to any file: neither the log of a try nor its own. No try may be lost for that."""
    worker = context.rng.choice(context.cluster.up(context.cluster.workers))
    pid = context.cluster.stack.pid(worker)
    try:
        _limit(pid, 0)
        time.sleep(context.pause_s())
    finally:
        _limit(pid, resource.RLIM_INFINITY)


def logs_deleted(context: FaultContext) -> None:
    """All of them, with their folders, while tasks write."""
    for _ in range(context.rng.randint(1, 5)):
        for folder in context.cluster.settings.logs_folder.glob("*"):
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(context.rng.choice((0.0, 0.3, 1.0)))


def _limit(pid: int, size: int) -> None:
    """For a worker and its children; those that start meanwhile inherit it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for child in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
