"""`paceline dags`: lists, shows, pauses, tests and triggers DAGs."""

import difflib
import json
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click

from paceline import states
from scheduler.cli import lazy, options, output, run_actions, saved_files
from scheduler.cli import runs as runs_cli

VERSION_COLUMNS = ["number", "is_current", "created_at", "runs", "content_hash"]


@click.group(cls=lazy.NounGroup)
def dags() -> None:
    """List, show, pause, test, trigger, clear and delete DAGs."""


dags.add_command(run_actions.clear_dag)
dags.add_command(run_actions.delete_dag)


@dags.command("list")
@click.option("--all", "all_", is_flag=True, help="Include DAGs whose file was deleted.")
@options.as_table
def list_(all_: bool) -> None:
    """List all DAGs with their schedule and newest run."""
    from scheduler.store.read import reads

    rows = options.transact(reads.dags, inactive=all_)
    columns = ["dag_id", "is_paused", "schedule", "task_count", "last_run_id", "last_run_state", "next_run_after", "file"]
    output.listing(rows, columns, empty=f"No DAGs; the DAGs folder is {options.settings().dags_folder}.")
    if not output.json_wanted() and (failed := len(options.transact(reads.import_errors))):
        output.say(f"{output.count(failed, 'DAG file')} cannot be read: `paceline dags errors` lists the errors.")
    if not output.json_wanted():
        for warning in _warnings():
            output.say(output.visible(f"Warning: DAG {warning['dag_id']}: {warning['message']}"))


@dags.command()
@options.dag
@options.as_table
def show(dag_id: str) -> None:
    """Show a DAG with its tasks, params and versions."""
    from scheduler.store.read import reads

    dag = options.transact(reads.dag, dag_id)
    if output.json_wanted():
        output.print_json(dag)
        return
    output.facts({name: value for name, value in dag.items() if name not in {"tasks", "versions", "params"}})
    columns = ["task_id", "operator", "upstream", "trigger_rule", "retries", "queue", "pool", "priority_weight"]
    output.table(dag["tasks"], columns, empty="No tasks.")
    if dag["params"]:
        output.table(_params(dag["params"]), ["param", "default", "schema", "description"], empty="")
    output.table(_versions(dag), VERSION_COLUMNS, empty="")


@dags.command()
@options.dag
@click.option("--diff", type=(int, int), metavar="A B", help="Print the changes from version A to version B instead.")
@options.as_table
def versions(dag_id: str, diff: tuple[int, int] | None) -> None:
    """List the versions of a DAG, newest first, with the number of their runs. New runs get the current version."""
    from scheduler.store.read import reads

    dag = options.transact(reads.dag, dag_id)
    if diff is None:
        output.listing(_versions(dag), VERSION_COLUMNS, empty="No versions.")
        return
    old, new = (
        json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
        for definition in options.transact(reads.definitions, dag_id, diff)
    )
    lines = list(difflib.unified_diff(old, new, f"version {diff[0]}", f"version {diff[1]}", lineterm=""))
    output.result({"from": diff[0], "to": diff[1], "diff": lines}, output.visible("\n".join(lines)) or "They are equal.")


@dags.command()
@options.dag
@click.option("--format", "form", type=click.Choice(["text", "mermaid"]), default="text", show_default=True)
@options.as_json
def graph(dag_id: str, form: str) -> None:
    """Print the edges of a DAG, one per line or as a Mermaid flowchart."""
    from scheduler.store.read import reads

    tasks = options.transact(reads.dag, dag_id)["tasks"]
    edges = [(above, task["task_id"]) for task in tasks for above in task["upstream"]]
    if output.json_wanted():
        output.print_json({"dag_id": dag_id, "tasks": [task["task_id"] for task in tasks], "edges": edges})
    elif form == "mermaid":
        number = {task["task_id"]: no for no, task in enumerate(tasks)}
        lines = [f'  t{no}["{name}"]' for name, no in number.items()]
        click.echo("\n".join(["flowchart LR", *lines, *(f"  t{number[a]} --> t{number[b]}" for a, b in edges)]))
    else:
        joined = {name for edge in edges for name in edge}
        alone = [task["task_id"] for task in tasks if task["task_id"] not in joined]
        click.echo("\n".join([*(f"{above} -> {below}" for above, below in edges), *alone]))


@dags.command()
@options.as_json
def errors() -> None:
    """List import errors of DAG files. Exit 1 if there are any. Warnings are printed too, and do not count."""
    from scheduler.store.read import reads

    rows = options.transact(reads.import_errors)
    if output.json_wanted():
        output.print_json(rows)
        click.get_current_context().exit(1 if rows else 0)
    for row in rows:
        line = f":{row['line']}" if row["line"] else ""
        click.echo(output.visible(f"{row['file']}{line}: {row['message']}"))
        if click.get_current_context().find_root().params.get("debug"):
            click.echo(output.visible(row["traceback"]))
    for warning in _warnings():
        output.say(output.visible(f"Warning: {warning['file']}: {warning['message']}"))
    if rows:
        click.get_current_context().exit(1)
    output.say("Every DAG file can be read.")


@dags.command()
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=options.complete_dags)
def reparse(dag_id: str | None) -> None:
    """Parse the file of a DAG again now. Without DAG, parse all DAG files."""
    from scheduler.actions import dags as actions

    files = actions.reparse(options.actor(), dag_id=dag_id)
    click.echo(f"Reading {output.count(len(files), 'DAG file')} again.")


@dags.command()
@options.dag
def pause(dag_id: str) -> None:
    """Pause a DAG: create no more runs and start no more tasks. Running tasks continue."""
    from scheduler.actions import dags as actions

    changed = actions.set_paused(options.actor(), dag_id, paused=True)
    click.echo(f"DAG {dag_id} is paused." if changed else f"DAG {dag_id} was paused already.")


@dags.command()
@options.dag
def unpause(dag_id: str) -> None:
    """Unpause a DAG."""
    from scheduler.actions import dags as actions

    changed = actions.set_paused(options.actor(), dag_id, paused=False)
    click.echo(f"DAG {dag_id} is unpaused." if changed else f"DAG {dag_id} was not paused.")


@dags.command()
@options.dag
@click.option("--run-id", type=options.RUN_ID, help="ID of the run. Default: manual__ and the current time.")
@options.logical_date
@options.conf
@click.option("--partition", metavar="KEY", help="The partition of the run, available to tasks as `dag_run.partition_key`.")
@click.option("--force", is_flag=True, help="Create the run although the file of the DAG cannot be loaded.")
@click.option("--wait", is_flag=True, help="Watch the run until it ends. Exit 0 on success, 1 on failure.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS", help="With --wait: exit 5 after this time."
)
@options.as_json
def trigger(
    dag_id: str,
    *,
    run_id: str | None,
    logical_date: datetime | None,
    conf: dict[str, Any] | None,
    given: tuple[tuple[str, str], ...],
    partition: str | None,
    force: bool,
    wait: bool,
    timeout_s: float | None,
) -> None:
    """Create a run of a DAG now."""
    from scheduler.actions import runs as actions
    from scheduler.store.read import reads

    if timeout_s is not None and not wait:
        raise click.UsageError("--timeout needs --wait.")
    saved_files.wait(dag_id)
    # Read first: if the DAG does not exist, the error message suggests a similar name.
    dag = options.transact(reads.dag, dag_id)
    run = actions.trigger(
        options.actor(),
        dag_id,
        run_id=run_id,
        logical_date=logical_date,
        conf=options.with_params(conf, given, dag["params"]),
        although_broken=force,
        partition_key=partition,
    )["run_id"]
    _warn(dag)
    if wait:
        runs_cli.end_with(dag_id, run, timeout_s=timeout_s)
    elif output.json_wanted():
        output.print_json(options.transact(reads.run, dag_id, run))
    else:
        click.echo(f"Run {run} of DAG {dag_id} is queued.")
        click.echo(f"Follow it with `paceline runs watch {shlex.quote(dag_id)} {shlex.quote(run)}`,")
        click.echo(f"or at {_page(dag_id, run)}.")


@dags.command("next")
@options.dag
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of runs.")
@options.as_table
def next_runs(dag_id: str, count: int) -> None:
    """Show when the schedule of a DAG creates its next runs."""
    from scheduler.store.dags import schedules

    rows = [asdict(times) for times in options.transact(schedules.upcoming, dag_id, count=count)]
    columns = ["run_after", "logical_date", "data_interval_start", "data_interval_end"]
    output.listing(rows, columns, empty=f"The schedule of DAG {dag_id} creates no further runs.")


@dags.command()
@options.dag
@options.logical_date
@options.conf
@options.as_table
def test(dag_id: str, *, logical_date: datetime | None, conf: dict[str, Any] | None, given: tuple[tuple[str, str], ...]) -> None:
    """Run the tasks of a DAG in this process, one at a time.

    The command needs no database, broker or workers. Each task gets one try. If the database of the settings answers,
    tasks read its variables and connections; changes stay in this process.
    """
    from scheduler.cli import dag_test

    date = logical_date or datetime.now(UTC)
    result = dag_test.run(options.settings(), dag_id, logical_date=date, conf=conf or {}, given=given, quiet=output.json_wanted())
    if output.json_wanted():
        output.print_json(result)
    else:
        index = ["map_index"] if any(row["map_index"] >= 0 for row in result["tasks"]) else []
        output.table(result["tasks"], ["task_id", *index, "state", "took_s", "reason"], empty="This DAG has no tasks.")
        click.echo(f"DAG {dag_id}: {result['state']}.")
    if result["state"] != states.RunState.SUCCESS:
        click.get_current_context().exit(1)


def _versions(dag: dict[str, Any]) -> list[dict[str, Any]]:
    return [version | {"is_current": version["number"] == dag["version"]} for version in dag["versions"]]


def _warnings() -> list[dict[str, Any]]:
    from scheduler.store.read import operations

    return options.transact(operations.dag_warnings)


def _params(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the params as rows. A param without a default is required."""
    return [
        {
            "param": name,
            "default": json.dumps(param["value"], ensure_ascii=False) if "value" in param else "required",
            "schema": json.dumps(param["schema"], ensure_ascii=False) if param["schema"] else "any",
            "description": param["description"],
        }
        for name, param in spec.items()
    ]


def _page(dag_id: str, run_id: str) -> str:
    """The address of a run in the web UI: of a running stack of this home, else that of the settings."""
    from scheduler.embedded import checks

    settings = options.settings()
    address = checks.running_addresses(settings.home).get("web") or settings.flower.pages_url or settings.web.local_url
    return f"{address.rstrip('/')}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def _warn(dag: dict[str, Any]) -> None:
    from scheduler.store.read import operations

    if dag["is_paused"]:
        output.say(f"DAG {dag['dag_id']} is paused: the run waits until `paceline dags unpause {dag['dag_id']}`.")
    silent_after_s = options.settings().scheduler.scheduler_health_check_threshold
    schedulers = options.transact(operations.processes, kind="scheduler", silent_after_s=silent_after_s)
    if not any(process["state"] == "alive" for process in schedulers):
        output.say("No scheduler is alive: the run waits until one is started with `paceline scheduler`.")
