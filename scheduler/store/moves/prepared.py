"""The statements of the hot path: the .sql files beside this module, prepared once on each connection of a pool process.

A file is one that psql takes as it is: `\\set` gives a parameter its name, number and type, and `prepare` gives the statement its
name. So `psql -f claim.sql` and then `explain execute claim(...)` show its plan, see docs/explanation/database.md.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from scheduler.store.db.prepared import Prepared

STATEMENT = re.compile(r"((?:^\\set [^\n]+\n)+)prepare (\w+) as\n(.+?);$", re.MULTILINE | re.DOTALL)
#: The lines of a report that a step leaves out, and those that only a step or several at once have, with their marks.
REPORT_ONLY = re.compile(r"^--\[\n.*?^--\]\n", re.MULTILINE | re.DOTALL)
STEP_ONLY, STEPS_ONLY = re.compile(r"^--step ", re.MULTILINE), re.compile(r"^--steps ", re.MULTILINE)
MARKS = re.compile(r"^--(\[|\]|steps? .+)\n", re.MULTILINE)
#: A parameter in a statement, and one with a list of one entry.
NAMED, FIRST = re.compile(r"(?<!:):(\w+)\b"), re.compile(r"\(:(\w+)\)\[1\]")
PARAMETER = re.compile(r"\\set (\w+) \$\d+::(\S+)")


def read(name: str) -> list[Prepared]:
    """The statements of a file, in its order."""
    text = Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")
    found = []
    for head, statement, body in STATEMENT.findall(text):
        parameters = dict(PARAMETER.findall(head))
        found.append(Prepared(statement, parameters, MARKS.sub("", body)))
        if STEP_ONLY.search(body):
            found += [_step(parameters, body), _steps(parameters, body)]
    return found


def _step(parameters: Mapping[str, str], body: str) -> Prepared:
    """The report of a step, from the text of the report in general, so that both have the same conditions."""
    body = MARKS.sub("", STEP_ONLY.sub("", REPORT_ONLY.sub("", body)))
    return Prepared("step", _used(parameters, body), body)


def _steps(parameters: Mapping[str, str], body: str) -> Prepared:
    """Several steps at once, from the same text: what is a parameter of one step is a column of `q`, which has a row for each."""
    body = MARKS.sub("", STEPS_ONLY.sub("", STEP_ONLY.sub("", REPORT_ONLY.sub("", body))))
    used = {name: f"{kind.removesuffix('[]')}[]" for name, kind in _used(parameters, body).items()}
    rows = f"select * from unnest({', '.join(f':{name}' for name in used)}) with ordinality q ({', '.join(used)}, no)"
    steps = NAMED.sub(r"q.\1", FIRST.sub(r":\1", body)).removeprefix("with")
    return Prepared("steps", used, f"with q as materialized ({rows}),{steps}")


def _used(parameters: Mapping[str, str], body: str) -> dict[str, str]:
    used = set(NAMED.findall(body))
    return {name: kind for name, kind in parameters.items() if name in used}


#: All of them, by name.
ALL = {one.name: one for name in ("claim", "report", "joins", "suspend", "close") for one in read(name)}
HOLD, CLAIM = ALL["hold"], ALL["claim"]
HOLD_MOVES, REPORT, STEP = ALL["hold_moves"], ALL["report"], ALL["step"]
HOLD_STEPS, STEPS = ALL["hold_steps"], ALL["steps"]
UNSTARTED, NEEDS_SCHEDULER, LOCK_JOINS = ALL["unstarted"], ALL["needs_scheduler"], ALL["lock_joins"]
UPSTREAM_STATES, PEER_STATES = ALL["upstream_states"], ALL["peer_states"]
SUSPEND = ALL["suspend"]
HOLD_RUN, CLOSE_RUN, LOOK_AFTER = ALL["hold_run"], ALL["close_run"], ALL["look_after"]
#: The statements that a new connection runs.
STATEMENTS = "".join(f"\n{one.prepare}" for one in ALL.values())
