"""Prepared statements with named parameters, which PostgreSQL itself only numbers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Prepared:
    """A statement with `$name` for each parameter; `types` has the types of these, and may have others."""

    name: str
    types: Mapping[str, str]
    body: str

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The types of its parameters, in the order of the numbers that they get."""
        used = set(re.findall(r"\$(\w+)", self.body))
        return {name: kind for name, kind in self.types.items() if name in used}

    @cached_property
    def prepare(self) -> str:
        """The statement that prepares it, which a connection runs once."""
        numbers = {name: str(number) for number, name in enumerate(self.parameters, 1)}
        numbered = re.sub(r"\$(\w+)", lambda found: f"${numbers[found.group(1)]}", self.body.strip())
        return f"prepare {self.name} ({', '.join(self.parameters.values())}) as\n{numbered};"

    @cached_property
    def execute(self) -> str:
        """The statement that executes it, with a mapping of its parameters. Arrays are cast, since an empty one has no type."""
        values = [f"%({name})s{f'::{kind}' if kind.endswith('[]') else ''}" for name, kind in self.parameters.items()]
        return f"execute {self.name}({', '.join(values)})"
