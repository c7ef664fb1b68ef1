"""`paceline runs`: lists, shows, watches, changes and reproduces DAG runs."""

from typing import TYPE_CHECKING, Any

import click

from paceline import states
from scheduler.cli import lazy, options, output, run_actions

if TYPE_CHECKING:
    from scheduler.store.runs.reproductions import Reproduction
    from scheduler.store.tables.scratch import Reproduced

#: Runs in a table without --limit. --json prints all.
SCREENFUL = 50
COLUMNS = ["dag_id", "run_id", "run_type", "state", "logical_date", "started_at", "ended_at"]
#: Of the comparison of a reproduction with its original: the tables, and inputs that differ.
COMPARED = [
    "table", "is_equal", "schema_equal", "original_rows", "reproduced_rows", "checksum_equal", "columns_that_differ", "note",
]  # fmt: skip
INPUT_COLUMNS = ["task_id", "map_index", "table", "original_publication", "reproduced_publication"]
#: A column that is shown only if a run cannot be decided, which is rare.
ENDS_AS, ERROR = "requested_state", "scheduling_error"


@click.group(cls=lazy.NounGroup)
def runs() -> None:
    """List, show, explain, watch, reproduce, clear, mark and delete DAG runs."""


runs.add_command(run_actions.clear_run)
runs.add_command(run_actions.mark_run)
runs.add_command(run_actions.delete_run)


@runs.command("list")
@click.option("--dag", "dag_id", metavar="DAG", help="Only runs of this DAG.")
@click.option("--state", type=click.Choice([state.value for state in states.RunState]), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(min=1), help=f"Show only the newest N. Without --json, the default is {SCREENFUL}.")
@options.as_table
def list_(dag_id: str | None, state: str | None, limit: int | None) -> None:
    """List DAG runs, newest first."""
    from scheduler.store.read import reads

    if output.json_wanted():
        output.print_json(options.transact(reads.runs, dag_id=dag_id, state=state, limit=limit))
        return
    shown = limit or SCREENFUL
    rows = options.transact(reads.runs, dag_id=dag_id, state=state, limit=shown + (limit is None))
    undecidable = any(row[ERROR] for row in rows[:shown])
    output.table(rows[:shown], [*COLUMNS, ERROR] if undecidable else COLUMNS, empty="No runs.")
    if len(rows) > shown:
        output.say(f"These are the newest {shown}; --limit shows more.")


@runs.command()
@options.run
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Maximum number.")
@options.as_table
def tables(dag_id: str, run_id: str, *, limit: int) -> None:
    """List the tables that the tries of a run have read and written, with the publications."""
    from scheduler.store.read import reads
    from scheduler.store.tables import history

    options.transact(reads.run, dag_id, run_id)
    rows = options.transact(history.used_by_run, options.settings().tables.catalog, dag_id, run_id, limit)
    columns = ["task_id", "map_index", "try_number", "table", "read_publication", "snapshot_id", "written_publication"]
    output.listing(rows, columns, empty=f"The run {run_id} of DAG {dag_id} has used no tables.")


@runs.command()
@options.run
@click.option("--events", "events_wanted", is_flag=True, help="Include every state change with its time, actor and reason.")
@options.as_table
def show(dag_id: str, run_id: str, events_wanted: bool) -> None:
    """Show a run with its task instances."""
    from scheduler.cli import progress
    from scheduler.store.read import history as store
    from scheduler.store.read import reads
    from scheduler.store.read import why as queries

    run = options.transact(reads.run, dag_id, run_id)
    options.transact(queries.explain_open, options.settings(), run["tasks"])
    if events_wanted:
        run["events"] = options.transact(store.events, run["id"])
    if output.json_wanted():
        output.print_json(run)
        return
    names = ["dag_id", "run_id", "run_type", "state", "logical_date", "data_interval_start", "data_interval_end", "conf",
             "triggered_by", "dag_version", "queued_at", "started_at", "ended_at"]  # fmt: skip
    output.facts({name: run[name] for name in [*names, *(name for name in (ENDS_AS, ERROR) if run[name])]})
    tasks = [task | {"took": progress.duration(task["started_at"], task["ended_at"])} for task in run["tasks"]]
    columns = ["task_id", "map_index", "state", "try_number", "queue", "worker", "started_at", "took", "reason"]
    output.table(tasks, columns, empty="No tasks.")
    if events_wanted:
        columns = ["at", "task_id", "map_index", "try_number", "from_state", "to_state", "actor", "reason"]
        output.table(run["events"], columns, empty="No events: core.record_events is off, or the run is older than they are.")


@runs.command()
@options.run
@options.as_json
def explain(dag_id: str, run_id: str) -> None:
    """Describe the history of a run in order: each change with its actor and reason, and the reasons for each wait."""
    from scheduler.store.read import history as store

    steps = options.transact(store.story, options.settings(), dag_id, run_id)
    if output.json_wanted():
        output.print_json(steps)
        return
    if not steps:
        output.say("Nothing is recorded: core.record_events is off, or the run is older than its events.")
    day = None
    for step in steps:
        if step["at"].date() != day:
            day = step["at"].date()
            click.echo(f"{day}")
        index = "" if step["map_index"] is None or step["map_index"] < 0 else f"[{step['map_index']}]"
        subject = "run" if step["task_id"] is None else f"{step['task_id']}{index}"
        click.echo(output.visible(f"  {step['at']:%H:%M:%S.%f} {subject}: {step['text']}"))


@runs.command()
@options.run
@options.history
@options.as_json
def why(dag_id: str, run_id: str, *, history: bool) -> None:
    """Explain why a run has not started, or what its first open task instances wait for."""
    from scheduler.store.read import history as store
    from scheduler.store.read import why as queries

    answer = options.transact(queries.why_run, options.settings(), dag_id, run_id)
    if output.json_wanted() or history:
        answer["history"] = options.transact(store.of_dag_run, dag_id, run_id)
    output.explanation(answer)


@runs.command()
@options.dag
@options.as_table
def bisect(dag_id: str) -> None:
    """Find the first version of a DAG whose runs fail, and which files of its bundle that version changed."""
    from scheduler.store.read import pictures as store

    found = options.transact(store.bisect, dag_id)
    if output.json_wanted():
        output.print_json(found)
        return
    columns = ["version_number", "bundle_version", "created_at", "success_count", "failed_count", "newest_run_id", "newest_state"]
    output.table(found["versions"], columns, empty="No versions.")
    click.echo(output.visible(_first_failing(found)))
    for kind, paths in (found["files"] or {}).items():
        for path in paths:
            click.echo(output.visible(f"{kind:<8} {path}"))


def _first_failing(found: dict[str, Any]) -> str:
    """Describe the result of a bisection in sentences."""
    failing, good = found["first_failing"], found["last_good"]
    if failing is None and good is None:
        return f"No run of DAG {found['dag_id']} has ended."
    if failing is None:
        return f"Version {good['version_number']} of DAG {found['dag_id']} succeeds: its newest run is {good['newest_run_id']}."
    text = f"Runs of DAG {found['dag_id']} fail since version {failing['version_number']}"
    if failing["bundle_name"]:
        said = f": {failing['message']}" if failing["message"] else ""
        place = f", from {failing['origin']}" if failing["origin"] else ""
        bundle = f"version {failing['bundle_version']} of bundle {failing['bundle_name']}"
        text += f" ({bundle}, deployed by {failing['created_by']}{place}{said})"
    text += f"; version {good['version_number']} succeeds." if good else "; no version before it succeeds."
    if found["untested"]:
        text += f" No run of the versions in between has ended: {', '.join(map(str, found['untested']))}."
    return text


@runs.command()
@options.run
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop watching after this time.")
@options.as_json
def watch(dag_id: str, run_id: str, timeout_s: float | None) -> None:
    """Watch a run until it ends. Exit 0 on success, 1 on failure, 5 on timeout."""
    end_with(dag_id, run_id, timeout_s=timeout_s)


def end_with(dag_id: str, run_id: str, *, timeout_s: float | None) -> None:
    """Watch a run until it ends, and print the result. Exit 0 on success, 1 on failure."""
    from scheduler.cli import progress

    screen = output.console(stderr=output.json_wanted())
    run = progress.watch_run(options.engine(), dag_id, run_id, console=screen, timeout_s=timeout_s)
    output.result(run, progress.verdict(run))
    if run["state"] != states.RunState.SUCCESS:
        click.get_current_context().exit(1)


@runs.command()
@options.run
@click.option("--keep", is_flag=True, help="Keep the tables of the reproduction until its run is deleted.")
@click.option(
    "--ignore", "ignored", metavar="COLUMN", multiple=True, help="Leave a column out of the comparison of rows. Can be repeated."
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop waiting after this time.")
@click.option("--yes", is_flag=True, help="Also run tasks again that are known to do more than write tables.")
@options.as_json
def reproduce(dag_id: str, run_id: str, *, keep: bool, ignored: tuple[str, ...], timeout_s: float | None, yes: bool) -> None:
    """Run an ended run again with the same code, on the same state of its tables, and compare what both have written.

    It writes into a namespace of its own, which is deleted at the end. Exit 0 if rows, schemas and checksums are equal, 1 if
    something differs, 2 if the run cannot be reproduced.
    """
    from scheduler.actions import runs as actions
    from scheduler.catalog import reproduction, scratch
    from scheduler.cli import progress
    from scheduler.cli.tables import settings_with_tables

    settings = settings_with_tables()
    created = actions.reproduce(options.actor(), dag_id, run_id, keep=keep, despite_effects=yes, ignored=ignored)
    _introduce(dag_id, run_id, created)
    screen = output.console(stderr=output.json_wanted())
    progress.watch_run(options.engine(), dag_id, created.run_id, console=screen, timeout_s=timeout_s)
    verdict = reproduction.judge(settings, options.engine(), created.id, wait=True)
    assert verdict is not None, "it has waited for it"
    answer = {
        "dag_id": dag_id, "run_id": run_id, "reproduction": created.run_id, "dag_version": created.version_number,
        "namespace": created.scratch if keep else None, **verdict,
    }  # fmt: skip
    if not keep:
        scratch.drop(settings, options.engine(), created.scratch)
    _show_comparison(answer)
    if not answer["is_equal"]:
        click.get_current_context().exit(1)


@runs.command()
@options.run
@options.as_table
def reproductions(dag_id: str, run_id: str) -> None:
    """List the newest reproductions of a run with the results of their comparisons; of a reproduction, itself."""
    from scheduler.store.read import reads
    from scheduler.store.tables import scratch

    run = options.transact(reads.run, dag_id, run_id)
    rows = [_listed(one) for one in options.transact(scratch.reproductions, run["id"])]
    columns = ["run_id", "state", "ended_at", "result", "differing", "reason"]
    output.listing(rows, columns, empty=f"The run {run_id} of DAG {dag_id} has no reproductions.")


def _listed(one: "Reproduced") -> dict[str, Any]:
    found = one.verdict or {"tables": [], "inputs": []}
    tables = ", ".join(row["table"] for row in found["tables"] if not row["is_equal"])
    return {
        "dag_id": one.dag_id, "run_id": one.run_id, "original_run_id": one.original_run_id, "state": one.state,
        "ended_at": one.ended_at, "result": one.result or "none", "differing": tables,
        "reason": None if one.result else one.why_none or one.failure or "It is compared within a minute or so.",
        "namespace": one.scratch if one.has_tables else None, **found,
    }  # fmt: skip


def _introduce(dag_id: str, run_id: str, created: "Reproduction") -> None:
    output.say(
        f"Run {run_id} of DAG {dag_id} runs again as {created.run_id}, with version {created.version_number} of the DAG,"
        f" and writes into the namespace {created.scratch}."
    )
    if created.moves:
        output.say("The run moved to this version while it ran: its earlier tasks executed other code.")


def _show_comparison(answer: dict[str, Any]) -> None:
    if output.json_wanted():
        output.print_json(answer)
        return
    rows = [row | {"columns_that_differ": ", ".join(row["columns_that_differ"])} for row in answer["tables"]]
    output.table(rows, COMPARED, empty="No tables.")
    if answer["inputs"]:
        click.echo("Its tasks have read other states than those of the original:")
        output.table(answer["inputs"], INPUT_COLUMNS, empty="")
    if answer["original_state"] != answer["reproduced_state"]:
        click.echo(f"The original is {answer['original_state']}, the reproduction is {answer['reproduced_state']}.")
    if answer["namespace"]:
        click.echo(f"The tables of the reproduction are in the namespace {answer['namespace']} as long as its run.")
    verdict = "is equal to" if answer["is_equal"] else "differs from"
    click.echo(output.visible(f"{answer['reproduction']} {verdict} {answer['run_id']}."))
