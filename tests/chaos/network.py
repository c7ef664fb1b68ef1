"""Faults of the network: one process is cut off from a server. Nothing is closed, or connections are refused."""

import contextlib
import time
from collections.abc import Callable

from chaos.act import LOOK_S, Act
from chaos.proxy import Line
from chaos.stage import Lines


def half_open_scheduler_postgres(act: Act) -> None:
    _half_open(act, act.stage.schedulers, lambda lines: [lines.postgres])


def half_open_scheduler_redis(act: Act) -> None:
    _half_open(act, act.stage.schedulers, lambda lines: [lines.redis])


def half_open_worker_postgres(act: Act) -> None:
    _half_open(act, act.stage.workers, lambda lines: [lines.postgres])


def half_open_worker_redis(act: Act) -> None:
    _half_open(act, act.stage.workers, lambda lines: [lines.redis])


def half_open_both(act: Act) -> None:
    _half_open(act, sorted(act.stage.lines), lambda lines: [lines.postgres, lines.redis])


def _half_open(act: Act, names: list[str], which: Callable[[Lines], list[Line]]) -> None:
    """One of these processes is cut off, and nobody tells it: nothing passes, or only the answers are lost."""
    name = act.dice.choice(act.stage.up(names))
    lines = act.stage.lines[name]
    cut = which(lines)
    reset, requests = act.dice.random() < 0.5, act.dice.random() < 0.7
    before = [line.swallowed for line in cut]
    with contextlib.ExitStack() as undo:
        if name in act.stage.workers and lines.postgres in cut:
            # Without Redis alone it lives on: then no try of it may be lost.
            undo.enter_context(act.stage.book.harm("cut off from PostgreSQL", name))
        for line in cut:
            undo.callback(lambda line=line: act.stage.proxy.do(lambda: line.mend(reset=reset)))
            act.stage.proxy.do(lambda line=line: line.cut(requests=requests))
        time.sleep(act.pause_s())
        deadline = time.monotonic() + LOOK_S
        while not all(line.swallowed > had for line, had in zip(cut, before, strict=True)):
            if time.monotonic() > deadline:
                raise TimeoutError("the process sent and got nothing while it was cut off")
            time.sleep(0.05)
