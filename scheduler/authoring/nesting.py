"""How deep JSON may be nested: what one process writes, another must be able to read wherever in its own work it is."""

MAX_DEPTH = 100


def is_too_deep(value: object) -> bool:
    """Whether lists and dicts lie in each other more than MAX_DEPTH deep, or one contains itself."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inside = [
            item
            for one in level
            if isinstance(one, dict | list | tuple)
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list | tuple)
        ]
        if not inside:
            return False
        # Each once, or what contains itself twice would double with each level.
        level = list({id(item): item for item in inside}.values())
    return True
