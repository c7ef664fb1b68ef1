"""Arrays as literals: PostgreSQL reads a literal of ten thousand elements much faster than an array expression."""

from collections.abc import Iterable


def literal(values: Iterable[str | int | None]) -> str:
    """The literal of a one-dimensional array, to send as one parameter and to cast to the type of its elements."""
    return "{" + ",".join(["NULL" if one is None else str(one) if isinstance(one, int) else _quoted(one) for one in values]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
