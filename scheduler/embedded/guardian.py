"""Runs one command and ends it, with every descendant, when it exits or when the supervisor that asked for it dies.

Started by path under a bare interpreter (`python -I -S guardian.py ...`), so it imports the standard library only:

    guardian.py --link FD --death-signal N [--user UID GID] -- COMMAND...

FD is one end of a socket pair. The guardian writes the command's process id to it; its end of file means that the
supervisor is gone, however it died, or wants an end now. Should the guardian itself be killed, the kernel gives the
command the death signal.
"""

import argparse
import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
#: Passed on to the command, and to it alone: it decides what its own children are told.
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: Seconds the command gets between the death signal and SIGKILL.
DEATH_GRACE_S = 10.0
#: Seconds after which descendants that do not even die of SIGKILL (waiting for a disk) are given up.
SWEEP_LIMIT_S = 10.0


def main(arguments: list[str]) -> int:
    """Run the command to its end; the exit code is the command's, or 128 and the signal that ended it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--death-signal", type=int, default=signal.SIGKILL)
    parser.add_argument("--user", type=int, nargs=2, metavar=("UID", "GID"))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    _keep_to_ourselves()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # The environment that the command gets, with its passwords, is nobody else's to read here.
    prctl(PR_SET_DUMPABLE, 0)
    wakeup = _wake_on_signals()
    # Held back until both sides of the fork know what to do with them: one that comes early must not get lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = _spawn(options)
    for number in FORWARDED:
        signal.signal(number, lambda received, _: _kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    _forget_environment()
    os.write(options.link, f"{child}\n".encode())
    status = _follow(child, link=options.link, wakeup=wakeup, death_signal=options.death_signal)
    _sweep(child)
    return status


def prctl(option: int, value: int) -> None:
    """Call prctl(2); elsewhere than on Linux there is nothing to call and the process group has to do."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _forget_environment() -> None:
    """Blank out the values where they lie, and /proc shows them: the command has its own copy."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    for name, value in os.environb.items():
        if place := libc.getenv(name):
            ctypes.memset(place, 0, len(value))


def _keep_to_ourselves() -> None:
    """Hand neither the link nor a lock on to the command: both must end with the guardian, not with a stray."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)


def _wake_on_signals() -> int:
    """A file descriptor that becomes readable with each signal, so that no SIGCHLD falls between a check and a wait."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *FORWARDED):
        signal.signal(number, lambda *_: None)
    return reading


def _spawn(options: argparse.Namespace) -> int:
    guardian = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, *FORWARDED):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        if options.user:
            uid, gid = options.user
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        # After the change of user, which clears it.
        prctl(PR_SET_PDEATHSIG, options.death_signal)
        if os.getppid() != guardian:
            os._exit(1)
        os.execvp(options.command[0], options.command)  # noqa: S606
    except OSError as error:
        os.write(2, f"{options.command[0]} cannot be started: {error}\n".encode())
    os._exit(127)


def _follow(child: int, *, link: int, wakeup: int, death_signal: int) -> int:
    """Reap whatever ends until the command does; tell it to end once the supervisor is gone."""
    watched = [wakeup, link]
    deadline: float | None = None
    while True:
        status = _reap(child)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select(watched, [], [], timeout)
        if wakeup in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 512)
        if link in readable and not _still_linked(link):
            watched.remove(link)
            deadline = time.monotonic() + DEATH_GRACE_S
            _kill(child, death_signal)
        if deadline is not None and time.monotonic() >= deadline:
            _kill(child, signal.SIGKILL)
            deadline = float("inf") if not LINUX else time.monotonic() + SWEEP_LIMIT_S


def _still_linked(link: int) -> bool:
    try:
        return os.read(link, 512) != b""
    except OSError:
        return False


def _reap(child: int) -> int | None:
    """Collect everything that ended; the wait status of the command if it is among it."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = status
    return found


def _sweep(child: int) -> None:
    """Kill what the command left behind: its process group and, adopted by this subreaper, every descendant."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    deadline = time.monotonic() + SWEEP_LIMIT_S
    while time.monotonic() < deadline:
        for pid in _descendants():
            _kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, os.WNOHANG)
        except OSError as error:
            if error.errno == errno.ECHILD:
                return
        time.sleep(0.01)


def _descendants() -> Iterable[int]:
    """Ids of all processes below this one (Linux; elsewhere nothing is adopted, so nothing is found)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command name, in parentheses, may itself hold blanks and parentheses.
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    waiting = children.get(os.getpid(), [])
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting.extend(children.get(pid, []))


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
