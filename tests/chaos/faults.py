"""All faults, and how one is injected."""

import threading
import time
from dataclasses import dataclass

from chaos.disks import disk_full, logs_deleted
from chaos.failover import standby_promoted
from chaos.fault_context import Fault, FaultContext
from chaos.network import (
    half_open_both,
    half_open_scheduler_postgres,
    half_open_scheduler_redis,
    half_open_worker_postgres,
    half_open_worker_redis,
    refused_worker_postgres,
    refused_worker_redis,
)
from chaos.processes import (
    child_kill,
    child_stop,
    scale_down,
    scheduler_kill,
    scheduler_stop,
    waiter_ended_in_a_claim,
    waiter_kill,
    worker_kill,
    worker_stop,
)
from chaos.recovery import Recovery
from chaos.servers import (
    delivered_twice,
    postgres_backend,
    postgres_fast,
    postgres_immediate,
    postgres_read_only,
    postgres_terminate,
    redis_client_kill,
    redis_empty,
    redis_flush,
    redis_frozen,
    redis_kill,
    slow_disk,
)
from chaos.user_actions import cleared, marked, paused, pool_shrunk, runs_deleted, scope_ended, version_switched

#: Those that return a recovery; every second fault is one of them.
MEASURED: tuple[Fault, ...] = (
    scheduler_kill, scheduler_kill, scheduler_kill, worker_kill, worker_kill, redis_empty, redis_flush, redis_flush,
    postgres_immediate, postgres_fast, postgres_backend,
)  # fmt: skip
HALF_OPEN: tuple[Fault, ...] = (
    half_open_scheduler_postgres, half_open_scheduler_redis, half_open_worker_postgres, half_open_worker_redis, half_open_both,
)  # fmt: skip
#: The other faults. A fault that stands here twice is injected twice as often.
UNMEASURED: tuple[Fault, ...] = (
    scheduler_stop, worker_stop, child_kill, child_stop, waiter_kill, scale_down, redis_kill, redis_client_kill,
    postgres_terminate, delivered_twice, *HALF_OPEN, refused_worker_postgres, refused_worker_redis, redis_frozen,
    postgres_read_only, standby_promoted, slow_disk, disk_full, logs_deleted, cleared, cleared, marked, paused, pool_shrunk,
    waiter_ended_in_a_claim, scope_ended, scope_ended, version_switched, version_switched, runs_deleted, runs_deleted,
)  # fmt: skip


@dataclass
class InjectedFault:
    """One fault in the report. `alone`: nothing else went wrong meanwhile, so its recovery counts."""

    number: int
    name: str
    at: str
    alone: bool
    seconds: float = 0.0
    #: By time.monotonic(); infinite while the fault lasts.
    ended: float = float("inf")
    recovery: Recovery | None = None
    error: str | None = None


def inject(fault: Fault, context: FaultContext, injected: InjectedFault) -> threading.Thread:
    """Start it in a thread; its findings are in `injected` at its end."""

    def work() -> None:
        started = time.monotonic()
        try:
            injected.recovery = fault(context)
        except Exception as error:
            # Two faults can prevent each other. The checker finds relevant violations.
            injected.error = f"{type(error).__name__}: {error}"
        injected.ended = time.monotonic()
        injected.seconds = injected.ended - started

    thread = threading.Thread(target=work, name=injected.name, daemon=True)
    thread.start()
    return thread
