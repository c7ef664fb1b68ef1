"""Secrets that this process has met, and how they are kept out of logs and reasons: each reads *** from then on.

A secret of less than 4 characters is not masked: it would blank out half of what a log says.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, AnyStr
from urllib.parse import quote

MASK = "***"
SHORTEST = 4
#: A line of a longer secret, such as a key file, is one too if it has as many characters.
SHORTEST_LINE = 12
#: Whatever has one of these in its name is secret.
SECRET_WORDS = (
    "access_token", "api_key", "apikey", "authorization", "credential", "keyfile_dict", "passphrase", "passwd", "password",
    "private_key", "pwd", "secret", "service_account", "token",
)  # fmt: skip


class Secrets:
    """What must not be read any more. `on_add` is called after each new one, and before anybody else gets it."""

    def __init__(self, on_add: Callable[[], None] = lambda: None) -> None:
        self.on_add = on_add
        #: Replaced, never changed: another thread may be reading them.
        self.texts: tuple[str, ...] = ()
        self.data: tuple[bytes, ...] = ()

    def add(self, value: object) -> None:
        """Mask a text from now on, or every text inside a list or dict."""
        if isinstance(value, Mapping):
            for item in value.values():
                self.add(item)
        elif isinstance(value, list | tuple | set | frozenset):
            for item in value:
                self.add(item)
        elif value is not None and not isinstance(value, bool):
            spellings = _spellings(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
            self.texts = tuple(sorted({*self.texts, *spellings}))
            self.data = tuple(text.encode("utf-8", "surrogatepass") for text in self.texts)
            if self.texts:
                self.on_add()

    def redact(self, text: str) -> str:
        """`text` without secrets."""
        return _replaced(text, _spans(text, self.texts), MASK) if self.texts else text


class Stream:
    """Bytes without secrets, as they come: what it gives back in pieces is what `redact` makes of the whole."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._kept = b""
        #: So many bytes at the beginning of `_kept` are part of a secret whose *** is written already.
        self._covered = 0

    def feed(self, data: bytes) -> bytes:
        """What of the data so far is certainly not the beginning of a secret."""
        data = self._kept + data
        return self._give(data, len(data) - longest_start(data, self._secrets.data))

    def finish(self) -> bytes:
        """The rest."""
        return self._give(self._kept, len(self._kept))

    def _give(self, data: bytes, end: int) -> bytes:
        covered = self._covered
        spans = _spans(data, self._secrets.data, covered=covered)
        self._kept = data[end:]
        self._covered = max([0, *(b - end for a, b in spans if a < end or (a == 0 and covered))])
        return _replaced(data[:end], [(a, min(b, end)) for a, b in spans if a < end], MASK.encode(), covered=covered)


def looks_secret(name: str) -> bool:
    """Whether what goes by this name is secret."""
    low = name.lower()
    return any(word in low for word in SECRET_WORDS)


def secrets_in(value: object) -> Iterable[object]:
    """The values inside a dict, however deep, whose names look secret."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if looks_secret(str(name)):
                yield item
            else:
                yield from secrets_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secrets_in(item)


def hidden(value: Any, *, secret: bool = False) -> Any:
    """`value` for people to see: what has a secret name in it reads ***, with `secret` all of it."""
    if isinstance(value, Mapping):
        return {name: hidden(item, secret=secret or looks_secret(str(name))) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(item, secret=secret) for item in value]
    return MASK if secret and value not in (None, "") else value


def longest_start(data: bytes, wanted: Iterable[bytes]) -> int:
    """How many bytes at the end of `data` may be the beginning of one of `wanted`."""
    longest = 0
    for one in wanted:
        for size in range(min(len(one) - 1, len(data)), longest, -1):
            if data.endswith(one[:size]):
                longest = size
                break
    return longest


_current = Secrets()


def begin(on_add: Callable[[], None] = lambda: None) -> None:
    """Forget the secrets of the try before."""
    global _current  # noqa: PLW0603 - a process runs one try at a time
    _current = Secrets(on_add)


def current() -> Secrets:
    """The secrets of the current try."""
    return _current


def mask_secret(value: object) -> None:
    """Let `value`, or every text inside it, read *** in this task's log from now on."""
    _current.add(value)


def redact(text: str) -> str:
    """`text` without the secrets of the current try."""
    return _current.redact(text)


def _spellings(text: str) -> set[str]:
    """How a secret may be written: plain, in a URL, in JSON, in a repr; and its lines."""
    plain = text.strip()
    lines = [line.strip() for line in plain.splitlines()] if "\n" in plain else []
    found = {plain, *(line for line in lines if len(line) >= SHORTEST_LINE)}
    for one in tuple(found):
        found |= {quote(one, safe="", errors="replace"), quote(one, errors="replace"), repr(one)[1:-1]}
        found |= {json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1]}
    return {one for one in found if len(one) >= SHORTEST}


def _spans(data: AnyStr, wanted: Iterable[AnyStr], *, covered: int = 0) -> list[tuple[int, int]]:
    """Where `data` holds one of `wanted`, overlapping places as one; `covered` at the beginning counts as a place."""
    found = [(0, covered)] if covered else []
    for one in wanted:
        place = data.find(one)
        while place >= 0:
            found.append((place, place + len(one)))
            place = data.find(one, place + 1)
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _replaced(data: AnyStr, spans: Iterable[tuple[int, int]], mask: AnyStr, *, covered: int = 0) -> AnyStr:
    parts: list[AnyStr] = []
    at = 0
    for start, end in spans:
        parts += [data[at:start]] if start == 0 and covered else [data[at:start], mask]
        at = end
    parts.append(data[at:])
    return data[:0].join(parts)
