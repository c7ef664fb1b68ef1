"""The log of a try from its file: its parts, its lines by number, its last lines, and a search of all of it, whatever its size."""

import base64
import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
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


class Level(IntEnum):
    """How serious a line is. NONE: it has no level, such as the output of print()."""

    NONE = 0
    DEBUG = 1
    INFO = 2
    WARNING = 3
    ERROR = 4


BLOCK = 1 << 20
#: Bytes of one line that are shown, and of one response.
LONGEST_LINE, LONGEST_PART = 64 << 10, 2 << 20
#: Logs whose line numbers are remembered.
MOST_FILES = 64
#: Seconds for one search; then the client continues it.
SEARCH_S = 1.5
#: A smaller log is counted at once.
SMALL = 64 << 20
#: Bytes of a line in which its level is looked for.
LONGEST_START = 300
_COLOR = re.compile(rb"\x1b\[[\d;]*m")
#: A time and a level, as in `2026-01-02T03:04:05.678Z ERROR`, or the level alone, as in `WARNING:root:` and `[error]`.
_START = re.compile(
    rb"(?:[\[(]?\d{2,4}[-/:].{0,80}?[^\w.])?[\[<]?(TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)(?![\w.])", re.DOTALL
)
_JSON = re.compile(rb'\{.{0,200}?"level": ?"(\w+)"', re.DOTALL)
#: The first and the last line of a traceback, and those of Java.
_TRACE = re.compile(
    rb"Traceback \(most recent call last\):|Caused by: |Exception in thread "
    rb"|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::|\s*$)"
)
_PYTHON_WARNING = re.compile(rb"\S+:\d+: \w*Warning: ")


@dataclass(slots=True)
class _Index:
    """The number of line ends in each whole block of a file."""

    ends: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@functools.lru_cache(MOST_FILES)
def _index(path: str, device: int, inode: int) -> _Index:
    """The index of a file, which is empty until it is counted."""
    return _Index()


def lines(file: Path, *, first: int, limit: int) -> dict[str, Any]:
    """Lines from number `first` on; the first line of a log is 0."""
    with opened(file) as stream:
        ends = _counted(file, stream)
        block = before = 0
        while block < len(ends) and before + ends[block] < first:
            before += ends[block]
            block += 1
        offset = _skip(stream, block * BLOCK, first - before)
        return _part(stream, offset, limit) | {"first_line": first, "total_lines": _total(stream, ends)}


def tail(file: Path, limit: int) -> dict[str, Any]:
    """The last lines. Their numbers are None in a large log that was not counted yet, since this must be fast."""
    with opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        end, data = size, b""
        while end > 0 and data.count(b"\n") <= limit and len(data) < LONGEST_PART:
            begin = max(0, end - BLOCK // 4)
            stream.seek(begin)
            data = stream.read(end - begin) + data
            end = begin
        whole = data[:-1] if data.endswith(b"\n") else data
        place = len(whole)
        for _ in range(limit):
            place = whole.rfind(b"\n", 0, place)
            if place < 0:
                break
        offset = end + place + 1
        found = _part(stream, offset, limit)
        if size > SMALL and not _is_counted(file):
            return found | {"first_line": None, "total_lines": None}
        total = _total(stream, _counted(file, stream))
        return found | {"first_line": total - len(found["lines"]), "total_lines": total}


def after(file: Path, offset: int, limit: int) -> dict[str, Any]:
    """Lines from a byte offset on, as an earlier response returned it."""
    with opened(file) as stream:
        return _part(stream, offset, limit) | {"first_line": None, "total_lines": None}


def search(
    file: Path, text: str, *, limit: int, offset: int = 0, line: int = 0, match_case: bool = False, level: Level | None = None
) -> dict[str, Any]:
    """The lines that contain a text, from a place on that an earlier search returned: `next_offset` with `next_line`.

    With `level` (WARNING or ERROR), only lines of at least this level; the text can be empty then.
    Without `match_case`, it ignores the case of the letters A to Z: a log is searched as bytes, so that this is fast.
    `is_complete` tells whether the search reached the end of the log.
    """
    wanted = text.encode("utf-8", "replace") if match_case else text.encode("utf-8", "replace").lower()
    ends_at = time.monotonic() + SEARCH_S
    matches: list[dict[str, Any]] = []
    with opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        while offset < size and len(matches) < limit and time.monotonic() < ends_at:
            stream.seek(offset)
            data = stream.read(BLOCK)
            cut = data.rfind(b"\n") + 1
            # A line longer than the block continues in the next one, which overlaps by the length of the text.
            data = data[:cut] if cut and offset + len(data) < size else data
            find = _finder(data, wanted, match_case=match_case, level=level)
            used, line = _in_block(data, find, matches, limit=limit, line=line, offset=offset)
            is_cut = wanted and not cut and offset + len(data) < size
            offset += used - (len(wanted) - 1 if is_cut and used == len(data) else 0)
    return {"matches": matches, "next_offset": offset, "next_line": line, "size": size, "is_complete": offset >= size}


def _finder(data: bytes, wanted: bytes, *, match_case: bool, level: Level | None) -> Callable[[int], int]:
    """Finds the first match of a block from an index on; -1 if there is none."""
    folded = data if match_case else data.lower()
    if level is None:
        return lambda at: folded.find(wanted, at)

    def find(at: int) -> int:
        while found := CANDIDATES[level].search(data, at):
            begin = data.rfind(b"\n", 0, found.start()) + 1
            end = data.find(b"\n", found.start())
            end = len(data) if end < 0 else end
            if (
                level_of(data[begin : min(end, begin + LONGEST_LINE)].rstrip(b"\r")) >= level
                and folded.find(wanted, begin, end) >= 0
            ):
                return found.start()
            at = end + 1
        return -1

    return find


def _in_block(
    data: bytes, find: Callable[[int], int], matches: list[dict[str, Any]], *, limit: int, line: int, offset: int
) -> tuple[int, int]:
    """Add the matches of a block; the bytes that were searched, and the number of the line after them."""
    at = counted = 0
    while (place := find(at)) >= 0:
        begin = data.rfind(b"\n", 0, place) + 1
        end = data.find(b"\n", place)
        end = len(data) if end < 0 else end
        line += data.count(b"\n", counted, begin)
        counted = begin
        shown_from = max(begin, place - LONGEST_LINE // 2)
        matches.append(
            {"line": line, "offset": offset + begin, "text": _text(data[shown_from : min(end, shown_from + LONGEST_LINE)])}
        )
        at = end + 1
        if len(matches) == limit:
            used = min(at, len(data))
            return used, line + data.count(b"\n", counted, used)
        if at >= len(data):
            break
    return len(data), line + data.count(b"\n", counted)


def _part(stream: BinaryIO, offset: int, limit: int) -> dict[str, Any]:
    """At most `limit` lines from a byte offset on, which is the start of a line. A long line is cut."""
    size = os.fstat(stream.fileno()).st_size
    stream.seek(min(offset, size))
    found: list[str] = []
    taken = 0
    at = min(offset, size)
    while len(found) < limit and taken < LONGEST_PART and at < size:
        line = stream.readline(LONGEST_LINE)
        if not line:
            break
        at += len(line)
        text = _text(line)
        if not line.endswith(b"\n") and at < size:
            skipped, last = _to_line_end(stream)
            at += skipped
            text += f" ... ({skipped} more bytes)"
            # A bar of progress writes each of its states over the one before, so its last state counts.
            text += f"\r{_text(last)}" if b"\r" in line and len(last) < LONGEST_LINE else ""
        found.append(text)
        taken += len(line)
    return {"lines": found, "offset": min(offset, size), "next_offset": at, "size": size}


def _to_line_end(stream: BinaryIO) -> tuple[int, bytes]:
    """Skip the rest of a line; its bytes, and what follows its last carriage return."""
    skipped, last = 0, b""
    while part := stream.readline(BLOCK):
        skipped += len(part)
        last = (last + part).rstrip(b"\r\n").rpartition(b"\r")[2]
        if part.endswith(b"\n"):
            break
    return skipped, last[: LONGEST_LINE + 1]


def _skip(stream: BinaryIO, offset: int, lines_: int) -> int:
    """The offset after `lines_` lines from an offset on."""
    while lines_ > 0:
        stream.seek(offset)
        data = stream.read(BLOCK)
        if not data:
            return offset
        count = data.count(b"\n")
        if count < lines_:
            lines_ -= count
            offset += len(data)
            continue
        place = -1
        for _ in range(lines_):
            place = data.find(b"\n", place + 1)
        return offset + place + 1
    return offset


def _counted(file: Path, stream: BinaryIO) -> list[int]:
    """The line ends in each whole block; blocks that came since the last time are read."""
    stat = os.fstat(stream.fileno())
    index = _index(str(file), stat.st_dev, stat.st_ino)
    with index.lock:
        whole = stat.st_size // BLOCK
        del index.ends[whole:]  # the file was made shorter
        stream.seek(len(index.ends) * BLOCK)
        while len(index.ends) < whole:
            index.ends.append(stream.read(BLOCK).count(b"\n"))
        return list(index.ends)


def _is_counted(file: Path) -> bool:
    stat = file.stat()
    ends = _index(str(file), stat.st_dev, stat.st_ino).ends
    return bool(ends) and len(ends) >= (stat.st_size - SMALL) // BLOCK


def _total(stream: BinaryIO, ends: list[int]) -> int:
    stream.seek(len(ends) * BLOCK)
    rest = stream.read()
    size = stream.tell()
    if size == 0:
        return 0
    stream.seek(size - 1)
    return sum(ends) + rest.count(b"\n") + (stream.read(1) != b"\n")


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "replace")


_NAMED = {b"TRACE": Level.DEBUG, b"WARN": Level.WARNING, b"CRITICAL": Level.ERROR, b"FATAL": Level.ERROR}
_NAMED |= {level.name.encode(): level for level in Level if level}
#: What each line of a level contains; most others do not.
CANDIDATES = {
    Level.ERROR: re.compile(
        rb"CRITICAL|FATAL|ERROR|Traceback \(|Caused by: |Exception in|(?:Error|Exception|Interrupt|Exit)(?::|\s*$)"
        rb'|"level": ?"(?:error|critical|fatal)',
        re.MULTILINE,
    )
}
CANDIDATES[Level.WARNING] = re.compile(CANDIDATES[Level.ERROR].pattern + rb'|WARN|Warning: |"level": ?"warn', re.MULTILINE)


def level_of(line: bytes) -> Level:
    """The level of a line without its end."""
    start = _COLOR.sub(b"", line[:LONGEST_START])
    found = _START.match(start) or _JSON.match(start)
    if found:
        return _NAMED.get(found[1].upper(), Level.NONE)
    if _TRACE.match(start):
        return Level.ERROR
    return Level.WARNING if _PYTHON_WARNING.match(start) else Level.NONE
