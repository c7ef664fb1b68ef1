"""Which tasks and accounts may use a namespace.

A namespace is open unless it, or a namespace above it, has the property `paceline.writers` or `paceline.readers`: a list, separated
by commas, of `dag:<id>`, `tag:<tag of a DAG>` and `bundle:<name>`. Writers may read too.
"""

from collections.abc import Collection, Mapping

PREFIX = "paceline."
READERS, WRITERS = f"{PREFIX}readers", f"{PREFIX}writers"


def restricts(properties: Mapping[str, str], *, writes: bool) -> bool:
    """Whether a namespace with these properties is not open to all."""
    return (WRITERS if writes else READERS) in properties


def listed(properties: Mapping[str, str], *, writes: bool) -> set[str]:
    """Those that may write to a restricted namespace, or read it."""
    lists = [properties.get(WRITERS, ""), *([] if writes else [properties.get(READERS, "")])]
    return {name.strip() for text in lists for name in text.split(",") if name.strip()}


def allow(properties: Mapping[str, str], names: Collection[str], *, writes: bool) -> bool:
    """Whether a task with these names may use a namespace."""
    return not restricts(properties, writes=writes) or not listed(properties, writes=writes).isdisjoint(names)
