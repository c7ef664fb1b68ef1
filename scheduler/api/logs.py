"""Parts of the log of a try, from its file."""

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from paceline.exceptions import NotFoundError, UsageError
from paceline.states import FINISHED, NOT_BEGUN
from scheduler.settings import Settings, log_paths

#: The beginning of the lines of log records, see workers/process/logs.
STAMP = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z) (?P<level>[A-Z]+) ")
#: Bytes of one part. A longer line is several.
PART = 1_048_576


def opened(file: Path) -> BinaryIO:
    """Open a file that a worker wrote. NotFoundError if it is not a regular file.

    No link is followed: a task could make its log, or a folder above, a link to what it may not read, but the web process may.
    """
    try:
        return os.fdopen(log_paths.regular_descriptor(file), "rb")
    except FileNotFoundError:
        raise NotFoundError("The log was deleted.") from None
    except OSError as error:
        raise NotFoundError(f"The log cannot be read: {error.strerror or 'it is not a regular file'}.") from None


def path(settings: Settings, ti: Mapping[str, Any], try_number: int) -> Path:
    """The log of a try. NotFoundError with the reason if there is none."""
    found = _local(settings, log_paths.try_path(settings.logs_folder, **_place(ti), try_number=try_number))
    if found is not None:
        return found
    which = f"Try {try_number} of task {ti['task_id']!r} of run {ti['run_id']!r}"
    if try_number > ti["try_number"] or (try_number == ti["try_number"] and (ti["state"] or "none") in NOT_BEGUN):
        raise NotFoundError(f"{which} has not begun.")
    if ti["try_number"] == 0 and ti["state"] in FINISHED:
        raise NotFoundError(f"Task {ti['task_id']!r} is {ti['state']}: nothing ran, so there is no log.")
    raise NotFoundError(f"{which} has no log on this machine: look on the machine of its worker, or set logs.url.")


def callbacks(settings: Settings, **place: Any) -> Path:
    """The output of the callbacks of a task instance or, without a task, of a run. NotFoundError."""
    found = _local(settings, log_paths.callbacks_path(settings.logs_folder, **place))
    if found is None:
        raise NotFoundError("There is no output of callbacks here: none has run yet, or it ran on another machine.")
    return found


def _place(ti: Mapping[str, Any]) -> dict[str, Any]:
    return {name: ti[name] for name in ("dag_id", "run_id", "task_id", "map_index")}


def _local(settings: Settings, named: str) -> Path | None:
    """The file of this name, or its copy, if it is here."""
    found = log_paths.local(settings, Path(named))
    if not found.is_file() or found.is_symlink():
        return None
    folder = settings.logs_folder if found.is_relative_to(settings.logs_folder) else log_paths.cache(settings)
    return log_paths.resolved(folder, found)


def rendered(settings: Settings, ti: Mapping[str, Any]) -> dict[str, str]:
    """The rendered templates of the newest try by field; empty if there are none, or they are on another machine."""
    try:
        log = path(settings, ti, ti["try_number"])
        with opened(Path(log_paths.rendered_path(str(log)))) as stream:
            found = json.load(stream)
    except (OSError, ValueError, RecursionError, NotFoundError):
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def part(file: Path, offset: int, *, ended: bool = True) -> tuple[list[str], int]:
    """The whole lines from a byte offset on, and the offset after them. Only of a try that has ended, also an unfinished last line.

    A line longer than a part is cut.
    """
    with opened(file) as stream:
        stream.seek(offset)
        data = stream.read(PART)
    if len(data) == PART or not ended:
        end = data.rfind(b"\n") + 1
        data = data[:end] if end or len(data) < PART else data
    lines = data.decode("utf-8", "replace").removesuffix("\n").split("\n") if data else []
    return [line.rstrip("\r") for line in lines], offset + len(data)


def parts(file: Path) -> Iterator[list[str]]:
    """All lines until the present end of the log, in parts that fit into memory."""
    offset = 0
    end = file.stat().st_size
    while offset < end:
        found, offset = part(file, offset)
        if not found:
            return  # it was made shorter meanwhile
        yield found


def structured(line: str) -> dict[str, str]:
    """A line as Airflow's clients expect it: the time and level with which log records begin, and the rest as `event`."""
    match = STAMP.match(line)
    if match is None:
        return {"event": line}
    return {"timestamp": match["at"], "level": match["level"].lower(), "event": line[match.end() :]}


def token(offset: int) -> str:
    """The continuation token for an offset."""
    return base64.urlsafe_b64encode(json.dumps({"offset": offset}).encode()).decode().rstrip("=")


def offset_of(text: str | None) -> int:
    """The offset of a continuation token. UsageError."""
    if not text:
        return 0
    try:
        offset = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))["offset"]
        if isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < 2**63:
            return offset
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise UsageError("The token is not one that this log returned: start without a token.")
