"""Faults of the network: one process is cut off from a server. Connections are left open, or refused."""

import contextlib
import time
from collections.abc import Callable

from support.waiting import eventually

from chaos.act import Act
from chaos.proxy import Line
from chaos.recovery import LIMIT_S
from chaos.stage import Lines


def half_open_scheduler_postgres(act: Act) -> None:
    _half_open(act, act.stage.schedulers, lambda lines: [lines.postgres])


def half_open_scheduler_redis(act: Act) -> None:
    _half_open(act, act.stage.schedulers, lambda lines: [lines.redis])


def half_open_worker_postgres(act: Act) -> None:
    _half_open(act, act.stage.workers, lambda lines: [lines.postgres])


def half_open_worker_redis(act: Act) -> None:
    _half_open(act, act.stage.workers, lambda lines: [lines.redis])


def refused_worker_postgres(act: Act) -> None:
    _refused(act, lambda lines: lines.postgres)


def refused_worker_redis(act: Act) -> None:
    _refused(act, lambda lines: lines.redis)


def half_open_both(act: Act) -> None:
    _half_open(act, sorted(act.stage.lines), lambda lines: [lines.postgres, lines.redis])


def _refused(act: Act, which: Callable[[Lines], Line]) -> None:
    """A worker, with all its children, loses its connections to one server and gets no new ones."""
    with act.stage.to_cut_off(act.stage.workers, act.dice) as name, act.stage.cut_off(name, [line := which(act.stage.lines[name])]):
        act.stage.proxy.do(line.refuse)
        try:
            time.sleep(act.pause_s())
        finally:
            act.stage.proxy.do(lambda: line.mend(reset=False))


def _half_open(act: Act, names: list[str], which: Callable[[Lines], list[Line]]) -> None:
    """One of these processes is cut off, and nobody tells it: nothing passes, or only the answers are lost.

    The time counts from the first loss. A process that waits for one server has nothing to lose to the other.
    """
    with contextlib.ExitStack() as undo:
        name = undo.enter_context(act.stage.to_cut_off(names, act.dice))
        cut = which(act.stage.lines[name])
        reset, requests = act.dice.random() < 0.5, act.dice.random() < 0.7
        before = [line.swallowed for line in cut]
        undo.enter_context(act.stage.cut_off(name, cut))
        for line in cut:
            undo.callback(lambda line=line: act.stage.proxy.do(lambda: line.mend(reset=reset)))
            act.stage.proxy.do(lambda line=line: line.cut(requests=requests))
        eventually(
            lambda: any(line.swallowed > had for line, had in zip(cut, before, strict=True)),
            timeout=LIMIT_S,
            message=f"{name} sent and got nothing while it was cut off",
        )
        time.sleep(act.pause_s())
