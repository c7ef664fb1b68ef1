"""Opens regular files in folders that user code can write to: no link leads out, and no pipe or device blocks the reader."""

import os
import stat
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def resolved(folder: Path, path: Path, *, links: bool = False) -> Path:
    """The real path of `path` in `folder`, for `descriptor`. With `links`, links inside the folder are followed. OSError if it is
    outside.
    """
    root = Path(os.path.realpath(folder))
    inside = Path(os.path.realpath(path)) if links else root / path.relative_to(folder)
    if ".." in inside.parts or not inside.is_relative_to(root):
        raise PermissionError(f"{path} leads out of {folder}")
    return inside


def descriptor(path: Path) -> int:
    """Open a regular file of which no part is a link. OSError.

    Each part is opened in the folder before it, so that a part that becomes a link at this moment is not followed either.
    """
    folder = os.open(path.anchor, _FOLDER)
    try:
        for part in path.parts[1:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        file = os.open(path.name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise PermissionError(f"{path} is not a regular file")
    return file
