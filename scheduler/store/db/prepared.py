"""Prepared statements: a connection plans them once, since planning them would take longer than running them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, CursorResult

#: Sent with each statement of `execute`, since it may be planned again: a plan for all values, by index, as it stays in use while
#: the tables grow.
PLAN_ONCE = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"


@dataclass(frozen=True)
class Prepared:
    """A statement with `:name` for each parameter, and the types of these in the order of their numbers."""

    name: str
    parameters: Mapping[str, str]
    body: str

    @cached_property
    def prepare(self) -> str:
        """The statement that prepares it, which a connection runs once."""
        numbered = {name: f"${number}::{kind}" for number, (name, kind) in enumerate(self.parameters.items(), 1)}
        body = re.sub(r"(?<!:):(\w+)", lambda found: numbered[found.group(1)], self.body)
        return f"prepare {self.name} as\n{body};"

    @cached_property
    def execute(self) -> str:
        """The statement that executes it, with a mapping of its parameters. Arrays are cast, since an empty one has no type."""
        values = [f"%({name})s{f'::{kind}' if kind.endswith('[]') else ''}" for name, kind in self.parameters.items()]
        return f"execute {self.name}({', '.join(values)})" if values else f"execute {self.name}"


def of(name: str, kinds: Mapping[str, str], text: str) -> Prepared:
    """A statement with `%(name)s` for each parameter, as other statements have them. `kinds` are their types, in any order."""
    return Prepared(name, kinds, re.sub(r"%\((\w+)\)s", r":\1", text))


def execute(
    connection: Connection, statement: Prepared, values: Mapping[str, object], *, after: Sequence[Prepared] = ()
) -> CursorResult[Any]:
    """Execute a statement in a transaction. A connection prepares it when it first needs it.

    The same message first executes those of `after`, with the same values. In READ COMMITTED, each sees what was committed until it
    begins, also while the one before waited for a lock.
    """
    known: set[str] = connection.info.setdefault("prepared", set())
    every = (*after, statement)
    for one in every:
        if one.name not in known:
            connection.exec_driver_sql(one.prepare.replace("%", "%%"))
            known.add(one.name)
    return connection.exec_driver_sql(f"{PLAN_ONCE}; {'; '.join(one.execute for one in every)}", values)
