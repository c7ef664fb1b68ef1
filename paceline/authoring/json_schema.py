"""JSON schemas of params, matched in linear time and within limits: the author of a schema cannot stop a process."""

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any

#: Lists and dicts inside each other.
MAX_DEPTH = 100
#: Objects of a schema after each $ref is replaced by its target, patterns among them, and bytes of one compiled pattern.
MOST_OBJECTS, MOST_PATTERNS, PATTERN_BYTES = 10_000, 100, 4 << 20
#: Patterns of a schema multiplied by the bytes of JSON of a value.
MOST_MATCHED_BYTES = 32 << 20
#: These find their target only during the check, so it cannot be known before whether they end.
DYNAMIC = ("$dynamicRef", "$recursiveRef")
HINT = " (a pattern has neither look-around nor back-references, and at most 4 MiB when compiled)"


def is_too_deep(value: object) -> bool:
    """Whether lists and dicts are nested more than MAX_DEPTH deep, or one contains itself."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inside = [
            item
            for outer in level
            if isinstance(outer, dict | list | tuple)
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list | tuple)
        ]
        if not inside:
            return False
        # Each only once: a list that contains itself twice would double with each level.
        level = list({id(item): item for item in inside}.values())
    return True


class _SchemaError(ValueError):
    """The fault of a schema."""


def schema_complaint(schema: Any) -> str | None:
    """The fault of a JSON schema; None if it is valid, and checking a value against it takes linear time."""
    if not isinstance(schema, Mapping):
        return f"it is a {type(schema).__name__} and must be a dict"
    try:
        _validator(schema)
    except _SchemaError as error:
        return str(error)
    return None


def complaint(value: Any, schema: Mapping[str, Any]) -> str | None:
    """The fault of `value`; None if it fits."""
    if not schema:
        return None
    try:
        validator, patterns = _validator(schema)
        if patterns and patterns * len(json.dumps(value)) > MOST_MATCHED_BYTES:
            return f"it is too long for a schema with {patterns} patterns"
        error = next(iter(validator.iter_errors(value)), None)
    except _SchemaError as wrong:
        return f"its schema is not valid: {wrong}"
    except ValueError as wrong:  # such as half of a surrogate pair
        return f"it is not JSON: {wrong}"
    return None if error is None else _described("".join(f"[{part!r}]" for part in error.instance_path), error.message)


def _validator(schema: Mapping[str, Any]) -> tuple[Any, int]:
    """The compiled schema and the number of its patterns. _SchemaError."""
    from jsonschema_rs import Draft202012Validator, ReferencingError, RegexOptions, ValidationError

    if is_too_deep(schema):
        raise _SchemaError(f"it is nested more than {MAX_DEPTH} levels deep")
    objects, patterns = _Size(schema).of(schema)
    if objects > MOST_OBJECTS or patterns > MOST_PATTERNS:
        most = f"{MOST_OBJECTS:,} objects and {MOST_PATTERNS} patterns"
        raise _SchemaError(f"it has {objects:,} objects and {patterns:,} patterns with those it refers to; {most} are allowed")
    options = RegexOptions(size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES)
    try:
        plain = json.loads(json.dumps(schema))  # its keys can be no texts
        made = Draft202012Validator(plain, pattern_options=options, validate_formats=True, formats=FORMATS, offline=True)
    except ValidationError as error:
        text = _described(".".join(str(part) for part in error.instance_path), error.message)
        raise _SchemaError(text + HINT if text.endswith("is not a 'regex'") else text) from None
    except (ReferencingError, TypeError, ValueError, RecursionError) as error:
        raise _SchemaError(str(error)) from None
    return made, patterns


class _Size:
    """Counts the objects and patterns of a schema in which each $ref is replaced by its target."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        #: Of the targets by their $ref; None while a target is being counted.
        self._targets: dict[str, tuple[int, int] | None] = {}

    def of(self, node: Any) -> tuple[int, int]:
        """The objects and patterns of a node. _SchemaError for a $ref that leads nowhere, outside or to itself."""
        objects, patterns = 0, 0
        if isinstance(node, Mapping):
            objects += 1
            patterns += isinstance(node.get("pattern"), str)
            patterns += len(node["patternProperties"]) if isinstance(node.get("patternProperties"), Mapping) else 0
            for name in DYNAMIC:
                if isinstance(node.get(name), str):
                    raise _SchemaError(f"{name} is not supported; use $ref")
            if node is not self._root and isinstance(node.get("$id"), str):
                raise _SchemaError("$id is not supported inside a schema, since it changes what each $ref means")
            if isinstance(reference := node.get("$ref"), str):
                inside = self._target(reference)
                objects, patterns = objects + inside[0], patterns + inside[1]
        for inner in node.values() if isinstance(node, Mapping) else node if isinstance(node, list | tuple) else ():
            if isinstance(inner, Mapping | list | tuple):
                inside = self.of(inner)
                objects, patterns = objects + inside[0], patterns + inside[1]
        return objects, patterns

    def _target(self, reference: str) -> tuple[int, int]:
        if reference not in self._targets:
            self._targets[reference] = None
            self._targets[reference] = self.of(self._found(reference))
        found = self._targets[reference]
        if found is None:
            raise _SchemaError(f"$ref {reference!r} leads to itself")
        return found

    def _found(self, reference: str) -> Any:
        from urllib.parse import unquote

        node: Any = self._root
        if reference != "#" and not reference.startswith("#/"):
            raise _SchemaError(f"it refers to {reference!r}, which is not inside it")
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(name)] if isinstance(node, list | tuple) else node[name]
            except (KeyError, IndexError, TypeError, ValueError):
                raise _SchemaError(f"it refers to {reference!r}, which is not inside it") from None
        if node is self._root:
            raise _SchemaError(f"$ref {reference!r} leads to itself")
        return node


def _described(place: str, message: str) -> str:
    return f"{place + ': ' if place else ''}{message[:200].replace(chr(34), chr(39)).rstrip('.')}"


def _format(parse: Callable[[str], object]) -> Callable[[str], bool]:
    """Whether a text can be parsed, to something that counts."""

    def is_valid(text: str) -> bool:
        try:
            return bool(parse(text))
        except ValueError:
            return False

    return is_valid


#: Dates and times, parsed by the standard library.
FORMATS = {
    "date-time": _format(lambda text: datetime.fromisoformat(text).tzinfo),
    "date": _format(date.fromisoformat),
    "time": _format(time.fromisoformat),
}
