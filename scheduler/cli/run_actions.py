"""The commands that change runs: clear, mark and delete, in the groups runs, tasks and dags."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from paceline import states
from paceline.states import RunState, TaskState
from scheduler.cli import options, output, saved_files

if TYPE_CHECKING:
    from scheduler.store.runs import selection

COLUMNS = ["run_id", "task_id", "map_index", "state", "becomes"]
#: What a table says of a new state that is not a plain word.
CLEARED = {"none": "cleared"}

_tasks = click.argument("task_ids", metavar="TASK...", nargs=-1, required=True)
_upstream = click.option("--upstream", is_flag=True, help="Include all upstream tasks.")
_downstream = click.option("--downstream", is_flag=True, help="Include all downstream tasks.")
_only_failed = click.option("--only-failed", is_flag=True, help="Only failed and upstream_failed task instances.")
_only_running = click.option("--only-running", is_flag=True, help="Only running task instances.")
_map_index = click.option("--map-index", type=click.IntRange(min=0), help="Only this instance of a mapped task.")
_latest = click.option(
    "--latest/--original",
    default=None,
    help="Continue with the newest DAG version, or with the version of the run. The DAG sets the default; without it, the"
    " newest for a DAG of the DAGs folder, and the version of the run for one of a bundle.",
)
_dry_run = click.option("--dry-run", is_flag=True, help="List the changes without making them.")


_clearing = options.together(_latest, _dry_run, options.yes, options.as_json)


class Clearing(TypedDict):
    """The options of every command that clears, by the names of their parameters."""

    latest: bool | None
    dry_run: bool
    yes: bool


@click.command("clear")
@options.together(options.run, _only_failed, _only_running, _clearing)
def clear_run(dag_id: str, run_id: str, *, only_failed: bool, only_running: bool, **how: Unpack[Clearing]) -> None:
    """Clear a run, or only its failed tasks, so that it runs again. Running tasks are stopped first."""
    from scheduler.actions import runs
    from scheduler.store.read import reads

    options.transact(reads.run, dag_id, run_id)
    _await_saved_files(dag_id, how["latest"])
    kept = _kept(only_failed=only_failed, only_running=only_running)
    change = functools.partial(runs.clear, options.actor(), [(dag_id, run_id)], states=kept, latest=how["latest"])
    _make(change, "clear", dry_run=how["dry_run"], yes=how["yes"])


@click.command("clear")
@options.together(options.run, _tasks, _upstream, _downstream, _only_failed, _only_running, _map_index, _clearing)
def clear_tasks(
    dag_id: str,
    run_id: str,
    task_ids: tuple[str, ...],
    *,
    upstream: bool,
    downstream: bool,
    only_failed: bool,
    only_running: bool,
    map_index: int | None,
    **how: Unpack[Clearing],
) -> None:
    """Clear tasks of a run so that they run again. Running tasks are stopped first.

    Setups and teardowns are cleared together with their tasks.
    """
    from scheduler.store.read import reads
    from scheduler.store.runs import selection

    tasks = selection.Tasks(
        task_ids=task_ids,
        map_index=map_index,
        upstream=upstream,
        downstream=downstream,
        states=_kept(only_failed=only_failed, only_running=only_running),
    )
    options.transact(reads.run, dag_id, run_id)
    _clear(selection.Runs(dag_id=dag_id, run_id=run_id), tasks, **how)


@click.command("clear")
@options.dag
@click.option("--task-regex", metavar="REGEX", help="Only tasks whose ID contains a match of this regular expression.")
@options.together(_upstream, _downstream)
@click.option("--from", "from_date", type=options.MOMENT, help="Only runs with this logical date or later.")
@click.option("--to", "to_date", type=options.MOMENT, help="Only runs with this logical date or earlier.")
@click.option(
    "--state",
    "state",
    type=click.Choice([state.value for state in TaskState]),
    multiple=True,
    help="Only task instances in this state. Can be repeated.",
)
@_clearing
def clear_dag(
    dag_id: str,
    *,
    task_regex: str | None,
    upstream: bool,
    downstream: bool,
    from_date: datetime | None,
    to_date: datetime | None,
    state: tuple[str, ...],
    **how: Unpack[Clearing],
) -> None:
    """Clear many runs of a DAG so that they run again. The options limit tasks, states and dates."""
    from scheduler.store.read import reads
    from scheduler.store.runs import selection

    runs = selection.Runs(dag_id=dag_id, from_date=from_date, to_date=to_date)
    wanted = frozenset(map(TaskState, state)) or None
    tasks = selection.Tasks(regex=task_regex, upstream=upstream, downstream=downstream, states=wanted)
    options.transact(reads.dag, dag_id)
    _clear(runs, tasks, **how)


@click.command("mark")
@options.run
@click.argument("state", metavar="STATE", type=click.Choice([RunState.SUCCESS.value, RunState.FAILED.value]))
@options.together(_dry_run, options.as_json)
def mark_run(dag_id: str, run_id: str, state: str, *, dry_run: bool) -> None:
    """Mark a run as success or failed. Running tasks are stopped."""
    from scheduler.actions import runs
    from scheduler.store.read import reads

    options.transact(reads.run, dag_id, run_id)
    changes = runs.change(options.actor(), dag_id, run_id, {"state": state}, dry_run=dry_run)
    if changes and not output.json_wanted():
        _table(changes)
    rows = [asdict(change) for change in changes]
    answer = {"dry_run": dry_run, "state": state, "changes": rows, "teardowns": changes.teardowns}
    verb, after = ("would be" if dry_run else "is"), ""
    if changes.teardowns:
        verb, after = ("would become" if dry_run else "becomes"), f" once its teardowns have ended: {', '.join(changes.teardowns)}"
    output.result(answer, f"Run {run_id} of DAG {dag_id} {verb} {state}{after}.")


@click.command("mark")
@options.task
@click.argument(
    "state", metavar="STATE", type=click.Choice([TaskState.SUCCESS.value, TaskState.FAILED.value, TaskState.SKIPPED.value])
)
@options.together(_upstream, _downstream, _map_index)
@click.option("--past", is_flag=True, help="Include all earlier runs.")
@click.option("--future", is_flag=True, help="Include all later runs.")
@click.option(
    "--clear-downstream", is_flag=True, help="Also clear failed downstream tasks, and queue a finished run again for them."
)
@options.together(_dry_run, options.yes, options.as_json)
def mark_task(
    dag_id: str,
    run_id: str,
    task_id: str,
    state: str,
    *,
    upstream: bool,
    downstream: bool,
    map_index: int | None,
    past: bool,
    future: bool,
    clear_downstream: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Mark a task as success, failed or skipped. A running task is stopped first.

    On a terminal, an option that marks or clears more than this task asks for confirmation.
    """
    from scheduler.actions import tasks
    from scheduler.store.read import reads
    from scheduler.store.runs import selection

    options.transact(reads.run, dag_id, run_id)
    change = functools.partial(
        tasks.change,
        options.actor(),
        selection.Runs(dag_id=dag_id, run_id=run_id, past=past, future=future),
        selection.Tasks(task_ids=(task_id,), map_index=map_index, upstream=upstream, downstream=downstream),
        {"state": state},
        clear_downstream=clear_downstream,
    )
    more = upstream or downstream or past or future or clear_downstream
    # A mark can be undone by a clear, so a script need not say --yes.
    _make(change, "mark", dry_run=dry_run, yes=yes or not more or not sys.stdin.isatty())


@click.command("delete")
@options.together(options.run, options.yes, options.as_json)
def delete_run(dag_id: str, run_id: str, *, yes: bool) -> None:
    """Delete a run with its task instances, tries, XComs and returned DataFrames. Its logs stay."""
    from scheduler.actions import runs
    from scheduler.store.read import reads

    options.transact(reads.run, dag_id, run_id)
    options.confirm(f"Delete run {run_id} of DAG {dag_id} for good?", yes)
    runs.delete(options.actor(), dag_id, run_id)
    output.result({"dag_id": dag_id, "run_id": run_id, "deleted": True}, f"Run {run_id} of DAG {dag_id} is deleted.")


@click.command("delete")
@options.together(options.dag, options.yes, options.as_json)
def delete_dag(dag_id: str, *, yes: bool) -> None:
    """Delete a DAG with all its runs and versions. If its file still exists, the DAG is created again without them."""
    from scheduler.actions import dags
    from scheduler.store.read import reads

    options.transact(reads.dag, dag_id)
    options.confirm(f"Delete DAG {dag_id} with all its runs for good?", yes)
    deleted = dags.delete(options.actor(), dag_id)
    answer = {"dag_id": dag_id, "runs": len(deleted.runs), "file": deleted.file}
    output.result(answer, f"DAG {dag_id} and {output.count(len(deleted.runs), 'run')} are deleted.")
    if deleted.file is not None and not output.json_wanted():
        output.say(f"Its file {deleted.file} still exists, so the DAG is created again. Remove the file to prevent that.")


def _clear(runs: selection.Runs, tasks: selection.Tasks, **how: Unpack[Clearing]) -> None:
    from scheduler.actions import tasks as actions

    _await_saved_files(runs.dag_id, how["latest"])
    change = functools.partial(actions.clear, options.actor(), runs, tasks, latest=how["latest"])
    _make(change, "clear", dry_run=how["dry_run"], yes=how["yes"])


def _await_saved_files(dag_id: str, latest: bool | None) -> None:
    if latest is not False:
        saved_files.wait(dag_id)


def _make(change: Callable[..., selection.Changes], verb: str, *, dry_run: bool, yes: bool) -> None:
    """Make a change of task instances after a confirmation, and print the changes."""
    if not dry_run and not yes and (planned := change(dry_run=True)):
        question = f"{verb.capitalize()} {output.count(len(planned), 'task instance')}?"
        options.confirm(question, yes, show=lambda: _table(planned))
    changes = change(dry_run=dry_run)
    if output.json_wanted():
        rows = [asdict(change) for change in changes]
        moved = {run_id: {"from": old, "to": new} for run_id, (old, new) in changes.moved.items()}
        output.print_json({"dry_run": dry_run, "changes": rows, "passed_over": changes.passed_over, "moved": moved})
        return
    _table(changes)
    if changes:
        done = {"clear": "cleared", "mark": "marked"}[verb]
        click.echo(f"{output.count(len(changes), 'task instance')} {'would be ' if dry_run else ''}{done}.")
    for run_id, (old, new) in changes.moved.items():
        output.say(f"Run {run_id} {'would continue' if dry_run else 'continues'} with version {new} of the DAG instead of {old}.")
    if changes.passed_over:
        output.say(f"{output.count(changes.passed_over, 'run')} without the task or map index passed over.")


def _table(changes: Sequence[selection.Change]) -> None:
    rows = [asdict(change) for change in changes]
    output.table(
        [row | {"becomes": CLEARED.get(row["becomes"], row["becomes"])} for row in rows], COLUMNS, empty="Nothing to change."
    )


def _kept(*, only_failed: bool, only_running: bool) -> Collection[TaskState] | None:
    if only_failed and only_running:
        raise click.UsageError("Choose --only-failed or --only-running.")
    return states.FAILURES if only_failed else states.STARTED if only_running else None
