"""Prepared statements whose parameters have names: PostgreSQL knows them by number only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Prepared:
    """A statement with `$name` for each parameter, which `parameters` gives a type."""

    name: str
    parameters: Mapping[str, str]
    body: str

    @cached_property
    def prepare(self) -> str:
        """What a connection runs once."""
        numbers = {name: str(number) for number, name in enumerate(self.parameters, 1)}
        numbered = re.sub(r"\$(\w+)", lambda found: f"${numbers[found.group(1)]}", self.body.strip())
        return f"prepare {self.name} ({', '.join(self.parameters.values())}) as\n{numbered};"

    @cached_property
    def execute(self) -> str:
        """What runs it, for a mapping of its parameters: an array has no type of its own while it is empty."""
        values = [f"%({name})s{f'::{kind}' if kind.endswith('[]') else ''}" for name, kind in self.parameters.items()]
        return f"execute {self.name}({', '.join(values)})"
