"""Runs one command. Kills all its descendants when the command exits, and the command too when the supervisor exits.

It is started by path under a bare interpreter (`python -I -S guardian.py ...`), so it imports the standard library only:

    guardian.py --link FD --death-signal N [--user UID GID] -- COMMAND...

FD is one end of a socket pair. The guardian writes the process ID of the command to it. End of file on it means that the
supervisor has exited for any reason, or that it stops the command. If the guardian itself is killed, the kernel sends the death
signal to the command.
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
#: Passed on to the command, but not to its children: the command decides about them.
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: Seconds between the death signal and SIGKILL.
DEATH_GRACE_S = 10.0
#: Seconds after which the guardian stops waiting for descendants that SIGKILL does not stop (they wait for a disk).
SWEEP_LIMIT_S = 10.0


def main(arguments: list[str]) -> int:
    """Run the command until it exits. Returns its exit code, or 128 plus the number of the signal that killed it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--death-signal", type=int, default=signal.SIGKILL)
    parser.add_argument("--user", type=int, nargs=2, metavar=("UID", "GID"))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    _keep_to_ourselves()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Other processes must not read the passwords in this environment.
    prctl(PR_SET_DUMPABLE, 0)
    wakeup = _wake_on_signals()
    # Blocked until both sides of the fork have their handlers, so that an early signal is not lost.
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
    """Call prctl(2) on Linux. Elsewhere nothing is called, and only the process group is killed."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _forget_environment() -> None:
    """Overwrite the values in memory, where /proc would show them. The command has its own copy."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    for name, value in os.environb.items():
        if place := libc.getenv(name):
            ctypes.memset(place, 0, len(value))


def _keep_to_ourselves() -> None:
    """Keep the command from inheriting the link and the lock: both must close with the guardian, not with a stray process."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)


def _wake_on_signals() -> int:
    """Return a descriptor that becomes readable at each signal, so that no SIGCHLD is lost between a check and a wait."""
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
    """Reap processes until the command ends, and return its exit code. Stops the command once the supervisor has exited."""
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
    """Reap all exited processes. Returns the wait status of the command if it is among them."""
    command_status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                command_status = status
    return command_status


def _sweep(child: int) -> None:
    """Kill the remaining processes of the command: its process group, and all descendants, which this subreaper has adopted."""
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
    """Yield the IDs of all descendants of this process. Linux only: elsewhere there are none, because nothing is adopted."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command name is in parentheses and may itself contain spaces and parentheses.
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
