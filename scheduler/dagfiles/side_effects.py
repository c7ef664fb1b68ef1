"""Records what a DAG file used beside Python code while it was loaded: files, folders, other processes, the network.

It uses the interpreter's audit events, whose hook cannot be removed from a process; it records only inside `recorded()`.
Operations without an event (the time, `os.stat`, environment variables) are not seen.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

#: Events that are side effects with any arguments.
OUTSIDE = frozenset((
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen", "os.system", "os.exec", "os.fork",
    "os.forkpty", "os.posix_spawn", "sqlite3.connect", "_thread.start_new_thread",
))  # fmt: skip
#: Folders of installed code and its data.
CODE = tuple(
    {f"{os.path.realpath(prefix)}/" for prefix in (sys.prefix, sys.base_prefix)} | {f"{sys.prefix}/", "/usr/share/zoneinfo/"}
)
CODE_SUFFIXES = (".py", ".pyc", ".so")
IMPORTER = "<frozen importlib._bootstrap_external>"


#: Files of the kernel, which are new at each reading.
KERNEL = ("/proc/", "/sys/", "/dev/")
_recorders: list["Inputs"] = []
_hooks: list[object] = []

Stamp = tuple[int, int, int]


@dataclass(slots=True)
class Inputs:
    """What a DAG file has used: files and folders as they were when it read them, and anything that cannot be compared."""

    stamps: dict[str, Stamp | None] = field(default_factory=dict)
    elsewhere: bool = False
    thread: int = field(default_factory=threading.get_ident)

    def __bool__(self) -> bool:
        return self.elsewhere or bool(self.stamps)

    def add(self, path: object) -> None:
        text = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]  # noqa: PTH100 - an event has text, bytes or a path
        if text.startswith(KERNEL):
            self.elsewhere = True
        else:
            self.stamps.setdefault(text, stamp(text))


@contextlib.contextmanager
def recorded() -> Iterator[Inputs]:
    """Record the side effects of the code inside the `with` block."""
    if not _hooks:
        sys.addaudithook(_hook)
        _hooks.append(_hook)
    inputs = Inputs()
    _recorders.append(inputs)
    try:
        yield inputs
    finally:
        _recorders.remove(inputs)


def stamp(path: str | os.PathLike[str]) -> Stamp | None:
    """Values that change with the content of a file, or with the names in a folder; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every task
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recorders or _recorders[-1].thread != threading.get_ident():
        return
    inputs = _recorders[-1]
    if event == "open":
        if _is_input(arguments):
            inputs.add(arguments[0])
    elif event in {"os.listdir", "os.scandir"}:
        if sys._getframe(1).f_code.co_filename == IMPORTER:
            return
        if arguments[0] is None or not isinstance(arguments[0], int):
            inputs.add(arguments[0] or ".")
        else:
            inputs.elsewhere = True
    elif event in OUTSIDE:
        inputs.elsewhere = True


def _is_input(arguments: tuple[Any, ...]) -> bool:
    """Whether this file is opened to read data other than code."""
    path, mode, flags = arguments
    if isinstance(path, int) or (isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY):
        return False
    if isinstance(mode, str) and mode[:1] in {"w", "a", "x"}:
        return False
    text = os.fsdecode(path)
    return not text.endswith(CODE_SUFFIXES) and not text.startswith(CODE)
