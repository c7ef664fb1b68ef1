"""The limit on the depth of JSON: every process must be able to read it, regardless of the depth of its own call stack."""

MAX_DEPTH = 100


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
