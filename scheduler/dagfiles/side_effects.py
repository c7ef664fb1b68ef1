"""Notes whether reading a DAG file looked at anything but Python code: files, folders, other processes, the network.

It goes by the interpreter's audit events, so it must be asked for in the child that reads, and cannot be taken back there.
What raises no event (the time, `os.stat`) is overlooked.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

#: Events that tell of something outside, whatever their arguments.
OUTSIDE = frozenset((
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen", "os.system", "os.exec", "os.fork",
    "os.forkpty", "os.posix_spawn", "sqlite3.connect", "os.scandir", "glob.glob",
))  # fmt: skip
#: Where there is code and what belongs to it.
CODE = tuple(
    {f"{os.path.realpath(place)}/" for place in (sys.prefix, sys.base_prefix)} | {f"{sys.prefix}/", "/usr/share/zoneinfo/"}
)
CODE_SUFFIXES = (".py", ".pyc", ".so")
IMPORTER = "<frozen importlib._bootstrap_external>"


def watch() -> Callable[[], bool]:
    """Watch from now on; the answer says whether anything outside was looked at until it is asked."""
    looked: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if _is_input(arguments):
                looked.append(event)
        elif event in OUTSIDE or (event == "os.listdir" and sys._getframe(1).f_code.co_filename != IMPORTER):
            looked.append(event)

    sys.addaudithook(hook)
    return lambda: bool(looked)


def _is_input(arguments: tuple[Any, ...]) -> bool:
    """Whether this file is opened to read something other than code."""
    path, mode, flags = arguments
    if isinstance(path, int) or (isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY):
        return False
    if isinstance(mode, str) and mode[:1] in {"w", "a", "x"}:
        return False
    text = os.fsdecode(path)
    return not text.endswith(CODE_SUFFIXES) and not text.startswith(CODE)
