"""`paceline plan`: shows what the deploy of a folder would change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import lazy, options, output
from scheduler.cli.bundle_access import access, of_installation

if TYPE_CHECKING:
    from datetime import datetime

    from scheduler.dagfiles.plan_changes import DagPlan, Plan, Problem

SIGNS = {"added": "+", "changed": "~", "removed": "-"}
#: Exit codes with --detailed-exitcode, those of `terraform plan`.
NO_CHANGES, REFUSED, CHANGES = 0, 1, 2
#: The most names and runs in one line.
NAMED = 8


@click.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--bundle", default="default", show_default=True, metavar="NAME", help="The bundle to compare with.")
@click.option(
    "--version",
    type=click.IntRange(1, lazy.LARGEST),
    metavar="N",
    help="Instead of DIR: plan this stored version, such as one to roll back to. Nothing is parsed.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown, for the comment of a pull request.")
@click.option(
    "--days", type=click.IntRange(1, 366), default=7, show_default=True, metavar="N", help="Compare the runs of so many days."
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 if the deploy would change anything.")
@of_installation
@options.as_json
def plan(
    folder: Path | None, *, bundle: str, version: int | None, markdown: bool, days: int, detailed_exitcode: bool, url: str | None,
    token: str | None,
) -> None:  # fmt: skip
    """Show what `paceline deploy DIR` would change: DAGs, tasks and their code, runs of the next days, and what is missing.

    The folder and the live version are parsed on this machine and compared; nothing is stored. With --url, no database is needed.
    Exit 1 if the version would be refused.
    """
    from scheduler.dagfiles import plan as planning

    if (folder is None) is (version is None):
        raise click.UsageError("Name the folder to plan, or use --version.")
    there = access(url, token)
    if folder is not None:
        made = planning.plan(there, options.settings(), folder, bundle, days)
    else:
        made = there.plan(bundle, version or 0, days)
    if output.json_wanted():
        output.print_json(as_json(made))
    elif markdown:
        click.echo(output.visible("\n".join(as_markdown(made))))
    else:
        click.echo(output.visible("\n".join(as_text(made))))
    changed = CHANGES if detailed_exitcode and made.changes else NO_CHANGES
    click.get_current_context().exit(REFUSED if made.problems else changed)


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    return {**asdict(plan), "would_be_refused": bool(plan.problems), "changes": plan.changes}


def as_text(plan: Plan) -> Iterator[str]:
    """The plan as lines."""
    yield _title(plan)
    for problem in plan.problems:
        yield f"! {_at(problem)}{problem.message}"
    for dag in plan.dags:
        yield f"{SIGNS[dag.change]} DAG {dag.dag_id} ({dag.file})"
        yield from (f"    {line}" for line in _facts(dag, plan.days))
    for line in _other_files(plan):
        yield f"  {line}"
    for line in _missing(plan):
        yield f"? {line}"


def as_markdown(plan: Plan) -> Iterator[str]:
    """The plan as lines of Markdown."""
    yield f"### {_title(plan)}"
    yield ""
    yield from (
        f"- ❌ `{problem.file}{f':{problem.line}' if problem.line else ''}`: {problem.message}" for problem in plan.problems
    )
    yield from (f"- ⚠️ {line}" for line in _missing(plan))
    if plan.dags:
        yield from ("", "| | DAG | what changes |", "|---|---|---|")
    for dag in plan.dags:
        facts = "<br>".join(line.replace("|", "\\|").replace("<", "&lt;") for line in _facts(dag, plan.days))
        yield f"| {SIGNS[dag.change]} | `{dag.dag_id}` | {facts} |"
    if others := list(_other_files(plan)):
        yield from ("", *others)


def _title(plan: Plan) -> str:
    live = "no live version" if plan.live_version is None else f"live version {plan.live_version}"
    counts = [
        output.count(number, f"{change} DAG") for change in SIGNS if (number := sum(dag.change == change for dag in plan.dags))
    ]
    what = ", ".join(counts) or ("no DAG changes" if plan.changes else "no changes")
    refused = "; it would be REFUSED" if plan.problems else ""
    version = getattr(plan, "version_number", None)
    of = f"version {version} of bundle {plan.bundle}" if version else f"bundle {plan.bundle}"
    # The live version is compared with the one before it.
    if version and version == plan.live_version:
        since = getattr(plan, "since", None)
        return f"What {of} changed since {f'version {since}' if since else 'nothing was live'}: {what}"
    return f"Plan for {of} against its {live}: {what}{refused}".replace("its no", "no")


def _at(problem: Problem) -> str:
    return f"{problem.file}{f':{problem.line}' if problem.line else ''}: " if problem.file else ""


def _facts(dag: DagPlan, days: int) -> Iterator[str]:
    """What changes in one DAG, a line each."""
    found = dag.difference
    yield from _changes(found.fields)
    if found.added_tasks:
        yield f"new tasks: {_some(found.added_tasks)}"
    if found.removed_tasks:
        yield f"removed tasks: {_some(found.removed_tasks)}"
    if found.added_edges:
        yield f"new edges: {_some([f'{above} -> {below}' for above, below in found.added_edges])}"
    if found.removed_edges:
        yield f"removed edges: {_some([f'{above} -> {below}' for above, below in found.removed_edges])}"
    if found.code:
        yield f"other code: {_some(found.code)}"
    for task_id, changes in found.arguments.items():
        yield from (f"task {task_id}: {line}" for line in _changes(changes))
    if dag.is_paused:
        yield "is paused: it creates no runs"
    if dag.created_runs:
        yield f"runs created in the next {output.count(days, 'day')}: {_runs(dag.created_runs)}"
    if dag.dropped_runs:
        yield f"runs no longer created in the next {output.count(days, 'day')}: {_runs(dag.dropped_runs)}"
    for version, count in dag.open_runs.items():
        ends = f"keep version {version} of the DAG" if dag.keeps_versions else "continue with the new version"
        yield f"{output.count(count, 'open run')} {ends}" if count > 1 else f"1 open run {ends.replace('keep', 'keeps', 1)}"


def _changes(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for change in changes:
        yield f"{change['name']}: {_value(change['before'])} -> {_value(change['now'])}"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _runs(dates: Sequence[datetime]) -> str:
    shown = ", ".join(f"{date:%Y-%m-%d %H:%M}" for date in dates[:3])
    return f"{len(dates)} ({shown}{', ...' if len(dates) > 3 else ''})"


def _other_files(plan: Plan) -> Iterator[str]:
    for kind, paths in plan.files.items():
        if paths:
            yield f"{kind} files: {_some(paths)}"


def _missing(plan: Plan) -> Iterator[str]:
    if plan.missing.pools:
        yield f"There is no pool {_some(plan.missing.pools)}: its tasks wait until it is created."
    if plan.missing.queues:
        yield f"No worker listens to the queue {_some(plan.missing.queues)}: its tasks wait for one."
    if plan.missing.connections:
        yield f"There is no stored connection {_some(plan.missing.connections)}; workers may have it in their environment."
    if plan.assets_without_producer:
        yield f"No task updates {_some(plan.assets_without_producer)} any more, and a DAG waits for it."
    if plan.assets_without_consumer:
        yield f"No DAG waits for {_some(plan.assets_without_consumer)} any more."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
