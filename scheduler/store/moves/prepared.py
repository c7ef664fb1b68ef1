"""Statements that a connection prepares once: planning them would take longer than running them.

Those of the hot path are the .sql files beside this module, which each connection of a pool process prepares when it is opened. A
file is one that psql takes as it is: `\\set` gives a parameter its name, number and type, and `prepare` gives the statement its
name. So `psql -f claim.sql` and then `explain execute claim(...)` show its plan, see docs/explanation/database.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, CursorResult

STATEMENT = re.compile(r"((?:^\\set [^\n]+\n)+)prepare (\w+) as\n(.+?);$", re.MULTILINE | re.DOTALL)
#: The lines of a report that a step leaves out, and those that only a step has, with their marks.
REPORT_ONLY = re.compile(r"^--\[\n.*?^--\]\n", re.MULTILINE | re.DOTALL)
STEP_ONLY = re.compile(r"^--step ", re.MULTILINE)
MARKS = re.compile(r"^--(\[|\]|step .+)\n", re.MULTILINE)
PARAMETER = re.compile(r"\\set (\w+) \$\d+::(\S+)")
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
        return f"execute {self.name}({', '.join(values)})"


def of(name: str, kinds: Mapping[str, str], text: str) -> Prepared:
    """A statement with `%(name)s` for each parameter, as other statements have them. `kinds` are their types, in any order."""
    return Prepared(name, kinds, re.sub(r"%\((\w+)\)s", r":\1", text))


def execute(connection: Connection, statement: Prepared, values: Mapping[str, object]) -> CursorResult[Any]:
    """Execute a statement in a transaction. A connection prepares it when it first needs it."""
    known: set[str] = connection.info.setdefault("prepared", set())
    if statement.name not in known:
        connection.exec_driver_sql(statement.prepare.replace("%", "%%"))
        known.add(statement.name)
    return connection.exec_driver_sql(f"{PLAN_ONCE}; {statement.execute}", values)


def read(name: str) -> list[Prepared]:
    """The statements of a file, in its order."""
    text = Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")
    found = []
    for head, statement, body in STATEMENT.findall(text):
        parameters = dict(PARAMETER.findall(head))
        found.append(Prepared(statement, parameters, MARKS.sub("", body)))
        if STEP_ONLY.search(body):
            found.append(_step(parameters, body))
    return found


def _step(parameters: Mapping[str, str], body: str) -> Prepared:
    """The report of a step, from the text of the report in general, so that both have the same conditions."""
    body = STEP_ONLY.sub("", REPORT_ONLY.sub("", body))
    used = {name for name in parameters if re.search(rf"(?<!:):{name}\b", body)}
    return Prepared("step", {name: kind for name, kind in parameters.items() if name in used}, body)


#: All of them, by name.
ALL = {one.name: one for name in ("claim", "report", "joins", "suspend") for one in read(name)}
HOLD, CLAIM = ALL["hold"], ALL["claim"]
HOLD_MOVES, REPORT, STEP = ALL["hold_moves"], ALL["report"], ALL["step"]
UNSTARTED, NEEDS_SCHEDULER, LOCK_JOINS = ALL["unstarted"], ALL["needs_scheduler"], ALL["lock_joins"]
UPSTREAM_STATES, PEER_STATES = ALL["upstream_states"], ALL["peer_states"]
SUSPEND = ALL["suspend"]
#: The statements that a new connection runs.
STATEMENTS = "".join(f"\n{one.prepare}" for one in ALL.values())
