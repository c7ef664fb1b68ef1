"""The conversation of an engine's program with the bench, over a Unix socket. Imports the standard library only."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Listener

#: The environment variables of a program: the socket on which it listens, an empty database and an empty Redis of its own, and a
#: folder on the same disk as the database.
SOCKET, DATABASE_URL, REDIS_SOCKET, FOLDER = "BENCH_SOCKET", "BENCH_DATABASE_URL", "BENCH_REDIS_SOCKET", "BENCH_FOLDER"
#: The numbered databases of the Redis that a program may use. 0 has Paceline's messages.
REDIS_NUMBERS = (1, 2)
#: Processes or threads that run steps, as many as Paceline's worker has pool processes.
WORKERS = 4
#: Seconds between two looks of an engine that polls, and of a program that waits for an end. The end itself is read exactly.
POLL_S = 0.01
START_S = 60.0

#: Runs a shape of a size, and returns the moment of its end in seconds since 1970.
Shape = Callable[..., float]


def serve(shapes: Mapping[str, Shape], steps_done: Callable[[], int]) -> None:
    """Run shapes for the bench until it hangs up.

    A request is the name of a shape and its sizes, the answer the seconds that it took and the steps that it added to
    `steps_done`. All workers have run steps before the program listens.
    """
    shapes["many"](2 * WORKERS, 2)
    shapes["wide"](4 * WORKERS)
    with Listener(os.environ[SOCKET], "AF_UNIX") as listener, listener.accept() as bench:
        while (request := _received(bench)) is not None:
            name, sizes = request
            before, started = steps_done(), time.time()
            ended = shapes[name](*sizes)
            bench.send((ended - started, steps_done() - before))


def module(*arguments: str) -> "subprocess.Popen[bytes]":
    """Start a module in another Python process. It ends with the program, because the bench ends all descendants of a program."""
    return subprocess.Popen([sys.executable, "-m", *arguments], stdin=subprocess.DEVNULL)


def wait_until(ready: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    """Poll until the condition is true."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{timeout_s:.0f} s were too short for {what}")
        time.sleep(POLL_S)


def _received(bench: "Connection") -> tuple[str, tuple[int, ...]] | None:
    try:
        request: tuple[str, tuple[int, ...]] = bench.recv()
    except EOFError:
        return None
    return request
