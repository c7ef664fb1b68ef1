"""Faults of the network: one process is cut off from a server. Connections are left open, or refused."""

import contextlib
import time
from collections.abc import Callable

from support.waiting import eventually

from chaos.cluster import Links
from chaos.fault_context import FaultContext
from chaos.proxy import Link
from chaos.recovery import LIMIT_S


def half_open_scheduler_postgres(context: FaultContext) -> None:
    _half_open(context, context.cluster.schedulers, lambda links: [links.postgres])


def half_open_scheduler_redis(context: FaultContext) -> None:
    _half_open(context, context.cluster.schedulers, lambda links: [links.redis])


def half_open_worker_postgres(context: FaultContext) -> None:
    _half_open(context, context.cluster.workers, lambda links: [links.postgres])


def half_open_worker_redis(context: FaultContext) -> None:
    _half_open(context, context.cluster.workers, lambda links: [links.redis])


def refused_worker_postgres(context: FaultContext) -> None:
    _refused(context, lambda links: links.postgres)


def refused_worker_redis(context: FaultContext) -> None:
    _refused(context, lambda links: links.redis)


def half_open_both(context: FaultContext) -> None:
    _half_open(context, sorted(context.cluster.links), lambda links: [links.postgres, links.redis])


def _refused(context: FaultContext, which: Callable[[Links], Link]) -> None:
    """A worker, with all its children, loses its connections to one server and gets no new ones."""
    with (
        context.cluster.to_cut_off(context.cluster.workers, context.rng) as name,
        context.cluster.cut_off(name, [link := which(context.cluster.links[name])]),
    ):
        context.cluster.proxy.do(link.refuse)
        try:
            time.sleep(context.pause_s())
        finally:
            context.cluster.proxy.do(lambda: link.restore(reset=False))


def _half_open(context: FaultContext, names: list[str], which: Callable[[Links], list[Link]]) -> None:
    """One of these processes is cut off without an error: nothing passes, or only the answers are lost.

    The time counts from the first loss. A process that waits for one server has nothing to lose to the other.
    """
    with contextlib.ExitStack() as undo:
        name = undo.enter_context(context.cluster.to_cut_off(names, context.rng))
        cut = which(context.cluster.links[name])
        reset, requests = context.rng.random() < 0.5, context.rng.random() < 0.7
        before = [link.swallowed for link in cut]
        undo.enter_context(context.cluster.cut_off(name, cut))
        for link in cut:
            undo.callback(lambda link=link: context.cluster.proxy.do(lambda: link.restore(reset=reset)))
            context.cluster.proxy.do(lambda link=link: link.cut(requests=requests))
        eventually(
            lambda: any(link.swallowed > had for link, had in zip(cut, before, strict=True)),
            timeout=LIMIT_S,
            message=f"{name} sent and got nothing while it was cut off",
        )
        time.sleep(context.pause_s())
