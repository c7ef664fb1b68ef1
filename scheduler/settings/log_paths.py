"""Where logs lie, who may read them, and what is said of one that is incomplete.

Every id gives its own path, and none leaves the folder of logs.
"""

import functools
import hashlib
import os
import re
from pathlib import Path

#: Most bytes of one path component; file systems end at 255.
MAX_COMPONENT_BYTES = 200
#: Logs hold what authors print: they are for the user of the process, and for its group, in which those who read them can be.
FOLDER_MODE, FILE_MODE = 0o750, 0o640
_INCOMPLETE = "the log of this try is incomplete: "


def try_path(folder: Path, *, dag_id: str, run_id: str, task_id: str, map_index: int, try_number: int) -> str:
    """The log of a try."""
    return f"{_task_folder(folder, dag_id, run_id, task_id, map_index)}/try-{try_number}.log"


def incomplete(why: str) -> str:
    """What the reason of a try says if lines are missing in its log: the log may have had no room for it."""
    return f"{_INCOMPLETE}{why}"


def why_incomplete(reason: str | None) -> str | None:
    """Why lines are missing in the log of a try that ended with this reason; None if none are."""
    found = re.search(f"{_INCOMPLETE}(.*)", reason or "")
    return None if found is None else found[1]


def run_folder(folder: Path, dag_id: str, run_id: str) -> Path:
    """Where all logs of a run lie."""
    return folder / component(dag_id) / component(run_id)


def callbacks_path(folder: Path, *, dag_id: str, run_id: str, task_id: str | None = None, map_index: int = -1) -> str:
    """The log of the callbacks of a task instance, or of a run. No component begins with %c, so no task's folder is in the way."""
    if task_id is None:
        return f"{folder}/{component(dag_id)}/{component(run_id)}/%callbacks.log"
    return f"{_task_folder(folder, dag_id, run_id, task_id, map_index)}/callbacks.log"


@functools.lru_cache(maxsize=4096)
def component(name: str) -> str:
    """`name` as one path component: slashes, control characters, %, a leading dot are %-encoded, a long one is cut and hashed."""
    parts = []
    for place, character in enumerate(name):
        plain = character.isprintable() and character not in "/%\\" and not (character == "." and place == 0)
        parts.append(character if plain else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass")))
    safe = "".join(parts) or "%"
    if len(safe.encode()) <= MAX_COMPONENT_BYTES:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return safe.encode()[: MAX_COMPONENT_BYTES - 20].decode(errors="ignore") + "%~" + digest


def append(path: str) -> int:
    """A descriptor that appends to a log; the folders that it needs are made."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    folder = os.path.dirname(path)  # noqa: PTH120 - a Path takes longer to make than the folder
    # Most often it is the first try: then the folder is missing, and the one above it is there.
    try:
        os.mkdir(folder, FOLDER_MODE)  # noqa: PTH102
    except FileExistsError:
        pass
    except FileNotFoundError:
        # Path.mkdir(parents=True) would give the mode to the last folder alone.
        for place in reversed((Path(folder), *Path(folder).parents)):
            place.mkdir(FOLDER_MODE, exist_ok=True)
    return os.open(path, flags, FILE_MODE)


def _task_folder(folder: Path, dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    mapped = f"/{map_index}" if map_index >= 0 else ""
    return f"{folder}/{component(dag_id)}/{component(run_id)}/{component(task_id)}{mapped}"
