"""The process that callbacks are run from: it has our modules imported, and forks a child for each DAG file.

Started as `python -P -m scheduler.dagfiles.callbacks` by callback_host.CallbackHost. It has no thread, no connection and no
password, and never runs the author's code itself. One child at a time answers on its pipes, JSON line for JSON line; when the
child has ended, the process says so and waits for the next file. When its input ends, it kills the child and ends.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from scheduler import log_paths, masked_output, masking
from scheduler.authoring import zones
from scheduler.authoring.dag import DAG
from scheduler.dagfiles import event, load

PRELOADED = ("scheduler.operators", "croniter", "zoneinfo")
MIB = 1024 * 1024
PR_SET_PDEATHSIG = 1
READ_BYTES = 1 << 16

_libc = ctypes.CDLL(None)


def serve(input_fd: int, output_fd: int) -> None:
    """Fork a child for each file asked for, until the input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while (request := _receive(input_fd)) is not None:
        pid = os.fork()
        if pid == 0:
            _child(request, input_fd, output_fd)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        code = _attend(pid, input_fd)
        if code is None:
            return
        _send(output_fd, {"ended": code})


def _attend(pid: int, input_fd: int) -> int | None:
    """Wait for the child's end and kill all it has started; None if the input ended before."""
    pid_fd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pid_fd, select.POLLIN)
    poll.register(input_fd, 0)  # a hangup is always reported
    ready = {fd for fd, _ in poll.poll()}
    os.close(pid_fd)
    # Not waited for yet, so nothing else can have got its id.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if pid_fd in ready else None


def _child(request: dict[str, Any], input_fd: int, output_fd: int) -> NoReturn:
    """The life of a child: load the file, then call what it is asked to call until it is told to stop."""
    code = 1
    try:
        _confine(request)
        _serve_file(request, input_fd, output_fd)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        # Neither atexit handlers nor threads the file has started may hold the child.
        os._exit(code)


def _serve_file(request: dict[str, Any], input_fd: int, output_fd: int) -> None:
    dags: dict[str, DAG] = {}
    problem = None
    faulthandler.dump_traceback_later(request["load_timeout_s"], exit=True)
    try:
        zones.set_default(request["timezone"])
        dags = load.load(Path(request["folder"]), request["file"])
    except BaseException as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
    faulthandler.cancel_dump_traceback_later()
    _send(output_fd, {"problem": problem})
    while (call := _receive(input_fd)) is not None and "stop" not in call:
        _log_to(call["log"])
        faulthandler.dump_traceback_later(request["timeout_s"], exit=True)
        with masked_output.masked((1, 2)):
            answer = _call(dags, call)
        faulthandler.cancel_dump_traceback_later()
        _flush()
        _send(output_fd, answer)


def _call(dags: dict[str, DAG], call: dict[str, Any]) -> dict[str, Any]:
    """Call one function of the event; how many it has, and what this one raised."""
    functions: list[event.Function] = []
    try:
        functions = event.functions(dags, call)
        if call["index"] >= len(functions):
            return {"count": len(functions), "error": None}
        function = functions[call["index"]]
        print(f"--- {event.headline(call)}, callback {function.name}", flush=True)  # noqa: T201 - this is the log
        function.call()
    except BaseException as error:
        traceback.print_exc()
        return {"count": len(functions), "error": masking.redact(f"{type(error).__name__}: {error}")}
    return {"count": len(functions), "error": None}


def _confine(request: dict[str, Any]) -> None:
    """Leave the parent's group behind, and set the limits."""
    os.setpgid(0, 0)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _log_to(request["log"])
    limit = request["memory_limit_mb"] * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(2)


def _log_to(path: str) -> None:
    """Everything printed goes to `path` from here on; where that cannot be written, it goes nowhere."""
    _flush()
    try:
        log = log_paths.append(path)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the author's code may have closed or replaced them
            stream.flush()


def _receive(fd: int) -> dict[str, Any] | None:
    """One line; whoever writes waits for an answer before the next, so no read takes more than it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(fd, READ_BYTES)
        if not data:
            return None
        line += data
    found: dict[str, Any] = json.loads(line)
    return found


def _send(fd: int, answer: dict[str, Any]) -> None:
    left = memoryview(json.dumps(answer).encode() + b"\n")
    while left:
        left = left[os.write(fd, left) :]


def main() -> None:
    """Keep the two pipes for ourselves: the author's code finds nothing on its input and cannot write into the answers."""
    input_fd, output_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    with contextlib.suppress(BrokenPipeError):
        serve(input_fd, output_fd)
    os._exit(0)


if __name__ == "__main__":
    main()
