"""The Celery app of the raw baseline: a no-op task, and one that sends its own successor."""

import os
import time
from typing import Any

from celery import Celery

#: The environment variables that its worker reads.
BROKER, ACK_EMULATION, STAMPS = "BENCH_BROKER_URL", "BENCH_ACK_EMULATION", "BENCH_STAMPS"
QUEUE = "raw"


def make(broker_url: str, *, ack_emulation: bool = True) -> Celery:
    """Celery with its defaults, but without results, which nothing reads, and optionally without acknowledgments."""
    celery = Celery("bench_raw", broker=broker_url, set_as_current=False)
    celery.conf.update(task_ignore_result=True, task_default_queue=QUEUE, broker_connection_retry_on_startup=True)
    if not ack_emulation:
        celery.conf.broker_transport_options = {"ack_emulation": False}
    celery.task(name="noop")(noop)
    celery.task(name="hop", bind=True)(hop)
    return celery


def noop() -> None:
    """Do nothing."""


def hop(task: Any, left: int) -> None:
    """Send the next task, then record when this one started."""
    began = time.time()
    if left:
        task.apply_async((left - 1,))
    stamps = os.open(os.environ[STAMPS], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(stamps, f"{began!r}\n".encode())
    os.close(stamps)


app = make(os.environ.get(BROKER, "memory://"), ack_emulation=os.environ.get(ACK_EMULATION) != "off")
