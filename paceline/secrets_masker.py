"""The secrets that this process has read, and their replacement with *** in logs and stored reasons.

A secret of less than 4 characters is not masked: that would hide large parts of a log.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, AnyStr
from urllib.parse import quote

MASK = "***"
SHORTEST = 4
#: A line of a longer secret, such as a key file, is masked too if it has at least this many characters.
SHORTEST_LINE = 12
#: A value is secret if its name contains one of these words.
SECRET_WORDS = (
    "access_token", "api_key", "apikey", "authorization", "credential", "keyfile_dict", "passphrase", "passwd", "password",
    "private_key", "pwd", "secret", "service_account", "token",
)  # fmt: skip


class Secrets:
    """A set of secrets. `on_add` is called after each new secret, before user code receives it."""

    def __init__(self, on_add: Callable[[], None] = lambda: None) -> None:
        self.on_add = on_add
        #: INVARIANT: replaced, never changed in place, because another thread may be reading them.
        self.texts: tuple[str, ...] = ()
        self.data: tuple[bytes, ...] = ()

    def add(self, value: object) -> None:
        """Mask a text, or every text inside a list or dict, from now on."""
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
        """Return `text` with *** in place of secrets."""
        return _replaced(text, _spans(text, self.texts), MASK) if self.texts else text


class Stream:
    """Masks secrets in a stream of bytes. The concatenated results equal `redact` of the whole stream."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._pending = b""
        #: The number of bytes at the start of `_pending` that belong to a secret whose *** is already written.
        self._covered = 0

    def feed(self, data: bytes) -> bytes:
        """Return the masked data so far, except for an end that may be the start of a secret."""
        data = self._pending + data
        return self._give(data, len(data) - longest_start(data, self._secrets.data))

    def finish(self) -> bytes:
        """Return the rest of the masked data."""
        return self._give(self._pending, len(self._pending))

    def _give(self, data: bytes, end: int) -> bytes:
        covered = self._covered
        spans = _spans(data, self._secrets.data, covered=covered)
        self._pending = data[end:]
        self._covered = max([0, *(b - end for a, b in spans if a < end or (a == 0 and covered))])
        return _replaced(data[:end], [(a, min(b, end)) for a, b in spans if a < end], MASK.encode(), covered=covered)


def looks_secret(name: str) -> bool:
    """Whether the name suggests that its value is secret."""
    low = name.lower()
    return any(word in low for word in SECRET_WORDS)


def secrets_in(value: object) -> Iterable[object]:
    """Yield the values with secret names in a dict, at any depth."""
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
    """Return `value` for display: values with secret names are replaced with ***; with `secret`, all of them."""
    if isinstance(value, Mapping):
        return {name: hidden(item, secret=secret or looks_secret(str(name))) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(item, secret=secret) for item in value]
    return MASK if secret and value not in (None, "") else value


def shown(name: str, text: str) -> str:
    """Return the text of a variable for display: *** if its name sounds secret, and without secret fields if it is JSON."""
    if looks_secret(name):
        return MASK
    try:
        value = json.loads(text)
        without = hidden(value)
        return text if without == value else json.dumps(without, ensure_ascii=False)
    except ValueError:
        return text
    except RecursionError:  # nested too deeply to look for secret fields
        return MASK


class AmbiguousMaskError(ValueError):
    """A value contains *** where nothing was masked, or where it is not clear what was."""


def unmasked(new: Any, shown_value: Any, old: Any) -> Any:
    """`new`, in which each *** that `shown_value` has at the same place is the value of `old` again. AmbiguousMaskError.

    An item of a list that contains *** must be at its place: either only one item has changed, or the item has not.
    """
    if new == shown_value:
        return old
    if isinstance(new, Mapping):
        fields, values = (value if isinstance(value, Mapping) else {} for value in (shown_value, old))
        return {name: unmasked(item, fields.get(name), values.get(name)) for name, item in new.items()}
    if isinstance(new, list):
        known, kept = (value if isinstance(value, list) else [] for value in (shown_value, old))
        changed = [index for index, item in enumerate(new) if len(new) != len(known) or item != known[index]]
        if len(new) == len(known) and len(changed) <= 1:
            return [unmasked(item, known[index], kept[index]) for index, item in enumerate(new)]
        return [_moved(item, known, kept) for item in new]
    if new == MASK:
        raise AmbiguousMaskError
    return new


def _moved(item: Any, known: list[Any], kept: list[Any]) -> Any:
    """An item of a list whose items may have moved: it is the only one that was shown like this, or it has no ***."""
    places = [index for index, other in enumerate(known) if other == item]
    if len(places) == 1:
        return kept[places[0]]
    return unmasked(item, None, None)


def unmasked_text(new: str, shown_text: str | None, old: str | None) -> str | None:
    """`unmasked` for texts, which may be JSON. AmbiguousMaskError."""
    if new == shown_text:
        return old
    if new == MASK:
        raise AmbiguousMaskError
    if MASK not in new:
        return new
    try:
        value = json.loads(new)
        if not isinstance(value, dict | list):
            return new
        before = [_parsed(text) for text in (shown_text, old)]
        without = unmasked(value, *before)
        return new if without == value else json.dumps(without, ensure_ascii=False)
    except AmbiguousMaskError:
        raise
    except RecursionError:
        raise AmbiguousMaskError from None
    except ValueError:
        return new


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def longest_start(data: bytes, wanted: Iterable[bytes]) -> int:
    """Return how many bytes at the end of `data` may be the start of one of `wanted`."""
    longest = 0
    for pattern in wanted:
        for size in range(min(len(pattern) - 1, len(data)), longest, -1):
            if data.endswith(pattern[:size]):
                longest = size
                break
    return longest


def nothing() -> None:
    """The listener of secrets that nobody waits for."""


#: The secrets of the current try.
secrets = Secrets()


def begin(on_add: Callable[[], None] = nothing) -> None:
    """Forget the secrets of the previous try."""
    global secrets  # noqa: PLW0603 - a process runs one try at a time
    secrets = Secrets(on_add)


def current() -> Secrets:
    """Return the secrets of the current try."""
    return secrets


def mask_secret(value: object) -> None:
    """Replace `value`, or every text inside it, with *** in the log of this task from now on."""
    secrets.add(value)


def redact(text: str) -> str:
    """Return `text` with *** in place of the secrets of the current try."""
    return secrets.redact(text)


def _spellings(text: str) -> set[str]:
    """Return the ways to write a secret and its lines: plain, in a URL, in JSON and in a repr."""
    plain = text.strip()
    lines = [line.strip() for line in plain.splitlines()] if "\n" in plain else []
    spellings = {plain, *(line for line in lines if len(line) >= SHORTEST_LINE)}
    for secret in tuple(spellings):
        spellings |= {quote(secret, safe="", errors="replace"), quote(secret, errors="replace"), repr(secret)[1:-1]}
        spellings |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {spelling for spelling in spellings if len(spelling) >= SHORTEST}


def _spans(data: AnyStr, wanted: Iterable[AnyStr], *, covered: int = 0) -> list[tuple[int, int]]:
    """Return the spans of `data` that match one of `wanted`, and of `covered` bytes at its start. Overlapping spans are merged."""
    matches = [(0, covered)] if covered else []
    for pattern in wanted:
        position = data.find(pattern)
        while position >= 0:
            matches.append((position, position + len(pattern)))
            position = data.find(pattern, position + 1)
    merged: list[tuple[int, int]] = []
    for start, end in sorted(matches):
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
