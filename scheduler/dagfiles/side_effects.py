"""Detects whether parsing a DAG file used anything but Python code: files, folders, other processes, the network.

It uses the interpreter's audit events, so it must run in the child that parses, and cannot be removed there.
Operations without an event (the time, `os.stat`) are not detected.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

#: Events that are side effects with any arguments.
OUTSIDE = frozenset((
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen", "os.system", "os.exec", "os.fork",
    "os.forkpty", "os.posix_spawn", "sqlite3.connect", "os.scandir", "glob.glob",
))  # fmt: skip
#: Folders of installed code and its data.
CODE = tuple(
    {f"{os.path.realpath(prefix)}/" for prefix in (sys.prefix, sys.base_prefix)} | {f"{sys.prefix}/", "/usr/share/zoneinfo/"}
)
CODE_SUFFIXES = (".py", ".pyc", ".so")
IMPORTER = "<frozen importlib._bootstrap_external>"


def watch() -> Callable[[], bool]:
    """Watch for side effects from now on. The returned function returns whether there were any so far."""
    seen: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if _is_input(arguments):
                seen.append(event)
        elif event in OUTSIDE or (event == "os.listdir" and sys._getframe(1).f_code.co_filename != IMPORTER):
            seen.append(event)

    sys.addaudithook(hook)
    return lambda: bool(seen)


def _is_input(arguments: tuple[Any, ...]) -> bool:
    """Whether this file is opened to read data other than code."""
    path, mode, flags = arguments
    if isinstance(path, int) or (isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY):
        return False
    if isinstance(mode, str) and mode[:1] in {"w", "a", "x"}:
        return False
    text = os.fsdecode(path)
    return not text.endswith(CODE_SUFFIXES) and not text.startswith(CODE)
