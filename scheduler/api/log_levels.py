"""The level of a line of a log: of Paceline's own records, and of the forms in which Python, Spark and other programs write theirs.

web/src/log/levels.ts has the same rules.
"""

import re
from enum import IntEnum


class Level(IntEnum):
    """How serious a line is. NONE: it has no level, such as the output of print()."""

    NONE = 0
    DEBUG = 1
    INFO = 2
    WARNING = 3
    ERROR = 4


#: Bytes of a line in which its level is looked for.
LONGEST_START = 300
_NAMED = {b"TRACE": Level.DEBUG, b"WARN": Level.WARNING, b"CRITICAL": Level.ERROR, b"FATAL": Level.ERROR}
_NAMED |= {level.name.encode(): level for level in Level if level}
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
