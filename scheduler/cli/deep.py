"""`paceline doctor --deep`: what contradicts itself in the database and the broker, and its repair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import options, output

if TYPE_CHECKING:
    from scheduler.store.upkeep.invariants import Broken

COLUMNS = ["invariant", "dag_id", "run_id", "task_id", "map_index", "what", "since"]
INTERNAL = ("dag_run_id", "ti_id", "dispatch_id", "key", "name")


def examine(*, repair: bool, json_wanted: bool) -> bool:
    """Print every row that breaks an invariant, or still does after the repair; whether there is none."""
    from scheduler.messaging.publisher import Publisher
    from scheduler.messaging.wakeups import client
    from scheduler.services import invariants

    settings = options.settings()
    engine = options.engine()
    with client(settings) as broker:
        tools = invariants.Tools(engine, settings, broker, Publisher(settings))
        found = invariants.find(tools)
        left = invariants.repair(tools, found) if repair and found else found
    if repair and found:
        options.wake("queue", "plan", "notify", *{f"run:{one.dag_run_id}" for one in found if one.dag_run_id is not None})
    repaired = [one for one in found if one not in left]
    if json_wanted:
        output.print_json({"ok": not left, "broken": _rows(left), "repaired": _rows(repaired)})
    else:
        _print(left, repaired)
    return not left


def _print(left: Sequence[Broken], repaired: Sequence[Broken]) -> None:
    if repaired:
        click.echo("Repaired:")
        output.table(_rows(repaired), COLUMNS, empty="")
    output.table(_rows(left), COLUMNS, empty="Every invariant holds.")
    if left:
        output.say(
            f"{len(left)} to look at; `paceline doctor --deep --repair` puts right what can be; what runs over a limit will end."
        )


def _rows(broken: Sequence[Broken]) -> list[dict[str, Any]]:
    shown = [{name: value for name, value in asdict(one).items() if name not in INTERNAL} for one in broken]
    return [{"invariant": one.name, **row} for one, row in zip(broken, shown, strict=True)]
