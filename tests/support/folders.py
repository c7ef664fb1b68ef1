"""The folders of test servers: in memory if the machine has enough, since each test copies a database."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "pl-"
#: Containers often have only 64 MB there. The servers of two sessions need less than this.
ROOM_BYTES = 4 << 30


@contextlib.contextmanager
def short_folder(*, memory: bool = True) -> Iterator[Path]:
    """A temporary folder with a name short enough for Unix sockets; on the disk without `memory`, or if memory lacks room."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY if memory and _has_room() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """A test session that is killed removes nothing, and memory is scarcer than disk."""
    for folder in MEMORY.glob(f"{PREFIX}[0-9]*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _has_room() -> bool:
    if not os.access(MEMORY, os.W_OK | os.X_OK) or not os.path.ismount(MEMORY):
        return False
    room = os.statvfs(MEMORY)
    return room.f_bavail * room.f_frsize >= ROOM_BYTES
