"""Parts of logs and searches in them."""

from scheduler.api.models.base import Model


class LogLines(Model):
    """Some lines of a log."""

    lines: list[str]
    #: The number of the first of them, from 0; null if that is not known without reading the whole log.
    first_line: int | None
    total_lines: int | None
    #: Bytes: where these lines begin, where the next ones begin, and the size of the log.
    offset: int
    next_offset: int
    size: int
    #: Whether the try has ended, so that no more lines follow.
    is_final: bool


class LogMatch(Model):
    """A line of a log that contains the text."""

    line: int
    offset: int
    text: str


class LogMatches(Model):
    """The lines that contain a text. Unless it is complete, continue the search with next_offset and next_line."""

    matches: list[LogMatch]
    next_offset: int
    next_line: int
    size: int
    is_complete: bool
