"""Paths and permissions of log files, and the mark of incomplete logs.

INVARIANT: every ID has its own path, and no path is outside of the logs folder.
"""

import errno
import functools
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote

#: Maximum length of a path component, in bytes. File systems allow 255.
MAX_COMPONENT_BYTES = 200
#: Logs hold the output of user code: only the user and the group of the process may read them.
FOLDER_MODE, FILE_MODE = 0o750, 0o640
_INCOMPLETE = "the log of this try is incomplete: "


def try_path(folder: Path, *, dag_id: str, run_id: str, task_id: str, map_index: int, try_number: int) -> str:
    """Return the path of the log of a try."""
    return f"{_task_folder(folder, dag_id, run_id, task_id, map_index)}/try-{try_number}.log"


def rendered_path(log: str) -> str:
    """Return the path of the rendered templates of a try, next to its log."""
    return f"{log.removesuffix('.log')}.rendered.json"


def incomplete(why: str) -> str:
    """Return the note on missing log lines for the reason of a try. The log itself may have no space left for it."""
    return f"{_INCOMPLETE}{why}"


def why_incomplete(reason: str | None) -> str | None:
    """Return why lines are missing in the log of a try that ended with this reason; None if the log is complete."""
    match = re.search(f"{_INCOMPLETE}(.*)", reason or "")
    return None if match is None else match[1]


def run_folder(folder: Path, dag_id: str, run_id: str) -> Path:
    """Return the folder of all logs of a run."""
    return folder / component(dag_id) / component(run_id)


def callbacks_path(folder: Path, *, dag_id: str, run_id: str, task_id: str | None = None, map_index: int = -1) -> str:
    """Return the path of the callback log of a task instance, or of a run.

    No encoded component begins with %c, so the path of a run's log cannot be the folder of a task.
    """
    if task_id is None:
        return f"{run_folder(folder, dag_id, run_id)}/%callbacks.log"
    return f"{_task_folder(folder, dag_id, run_id, task_id, map_index)}/callbacks.log"


@functools.lru_cache(maxsize=4096)
def component(name: str) -> str:
    """Encode `name` as one path component.

    Slashes, control characters, % and a leading dot are percent-encoded. A long name is cut, and a hash of it is appended.
    """
    parts = []
    for index, character in enumerate(name):
        plain = character.isprintable() and character not in "/%\\" and not (character == "." and index == 0)
        parts.append(character if plain else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass")))
    safe = "".join(parts) or "%"
    if len(safe.encode()) <= MAX_COMPONENT_BYTES:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return safe.encode()[: MAX_COMPONENT_BYTES - 20].decode(errors="ignore") + "%~" + digest


def append(path: str) -> int:
    """Open a log for appending and return its descriptor. Missing folders are created.

    OSError also for a link, a FIFO or anything else that user code has put in its place: nothing is written through it, and
    opening it never blocks.
    """
    folder = os.path.dirname(path)  # noqa: PTH120 - creating a Path takes longer than creating the folder
    # Usually this is the first try: the folder is missing and its parent exists.
    try:
        os.mkdir(folder, FOLDER_MODE)  # noqa: PTH102
    except FileExistsError:
        pass
    except FileNotFoundError:
        # Path.mkdir(parents=True) would set the mode of the last folder only.
        for place in reversed((Path(folder), *Path(folder).parents)):
            place.mkdir(FOLDER_MODE, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, FILE_MODE)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file


def _task_folder(folder: Path, dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    mapped = f"/{map_index}" if map_index >= 0 else ""
    return f"{folder}/{component(dag_id)}/{component(run_id)}/{component(task_id)}{mapped}"


def page_of_try(pages_url: str, attempt: Any) -> str:
    """The address of the page of a task instance, named by the IDs and map_index of `attempt`; empty without `pages_url`."""
    if not pages_url:
        return ""
    parts = ["dags", attempt.dag_id, "runs", attempt.run_id, "tasks", attempt.task_id]
    if attempt.map_index >= 0:
        parts.append(attempt.map_index)
    return "/".join((pages_url.rstrip("/"), *(quote(str(part), safe="") for part in parts)))
