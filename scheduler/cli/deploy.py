"""`paceline deploy` stores a folder as a version of a bundle, or rolls back, and waits until schedulers have parsed it.

`paceline plan` shows what the deploy of a folder would change. `paceline bundles` lists bundles, their versions and files.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from paceline.exceptions import UnreachableError, WaitTimeoutError
from scheduler.cli import lazy, options, output
from scheduler.cli.bundle_access import BundleAccess, Row, access, of_installation

if TYPE_CHECKING:
    from datetime import datetime

    from scheduler.dagfiles.plan import DagPlan, Plan, Problem

POLL_S = 0.3
#: Seconds for a question to Git, and the characters of an origin.
GIT_S, LONGEST_ORIGIN = 20, 1000
#: The value of --rollback without a version.
PREVIOUS = "previous"
BUNDLES = ["bundle_name", "live_version", "wanted_version", "wanted_state", "live_at", "dag_count", "version_count", "message"]
VERSIONS = ["version_number", "state", "is_live", "created_at", "created_by", "file_count", "run_count", "message", "origin"]
name = click.argument("bundle", metavar="BUNDLE")


def _version(text: str) -> str:
    if text != PREVIOUS and not (text.isdecimal() and 0 < int(text) < 2**31):
        raise ValueError(f"{text!r} is not the number of a version: `paceline bundles versions` shows them.")
    return text


@click.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--bundle", default="default", show_default=True, metavar="NAME", help="The bundle to deploy to. A new name creates one."
)
@click.option("--message", "-m", default="", help="What has changed, for the list of versions and the audit log.")
@click.option(
    "--rollback",
    is_flag=False,
    flag_value=PREVIOUS,
    type=options.Parsed("version", _version),
    metavar="[VERSION]",
    help="Instead of DIR: make this version live again. Default: the one that was live before.",
)
@of_installation
@click.option("--no-wait", is_flag=True, help="Do not wait until a scheduler has parsed the version.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Exit 5 if the version is neither live nor refused by then.",
)
@options.as_json
def deploy(
    folder: Path | None, *, bundle: str, message: str, rollback: str | None, url: str | None, token: str | None, no_wait: bool,
    timeout_s: float,
) -> None:  # fmt: skip
    """Deploy the folder DIR as a version of a bundle, and wait until it is live.

    Hidden files, caches, virtual environments and node_modules are left out. A version goes live as a whole, or not at all: if a
    DAG file has an error, the command prints it and exits 1, and the version before stays live. Running runs keep their code.
    """
    from scheduler.dagfiles.bundle_files import read_folder

    if (folder is None) is (rollback is None):
        raise click.UsageError("Name the folder to deploy, or use --rollback.")
    there = access(url, token)
    if folder is not None:
        files = read_folder(folder, options.settings().bundles)
        row = there.deploy(bundle, files, message=message, origin=origin_of(folder))
    else:
        row = there.roll_back(bundle, None if rollback == PREVIOUS else int(rollback or 0))
    if folder is not None and not output.json_wanted():
        output.say(_stored(row))
    if no_wait:
        output.result(row, f"Version {row['version_number']} of bundle {bundle} goes live as soon as a scheduler has parsed it.")
        return
    _end(there, row, _decided(there, row, timeout_s))


def _end(there: BundleAccess, deployed: Row, row: Row) -> None:
    """Print what a version has changed, or why it is not live, and exit."""
    name = f"Version {row['version_number']} of bundle {row['bundle_name']}"
    changes = there.changes(row["bundle_name"], row["version_number"], deployed["previous_version"]) if row["is_live"] else None
    if output.json_wanted():
        output.print_json(deployed | row | {"changes": changes})
    elif changes is not None:
        for kind, dag_ids in changes["dags"].items():
            for dag_id in dag_ids:
                click.echo(output.visible(f"{kind:<8} DAG {dag_id}"))
        click.echo(f"{name} is live." if any(changes["dags"].values()) else f"{name} is live; no DAG differs from before.")
    elif row["state"] == "refused":
        for problem in row["problems"]:
            line = f":{problem['line']}" if problem.get("line") else ""
            click.echo(output.visible(f"{problem['file']}{line}: {problem['message']}"))
        before = deployed["previous_version"]
        output.say(f"{name} does not go live" + (f": version {before} stays live." if before else "."))
    else:
        output.say(f"{name} does not go live: another version was deployed meanwhile.")
    if not row["is_live"]:
        click.get_current_context().exit(1)


def _decided(there: BundleAccess, row: Row, timeout_s: float) -> Row:
    """The version as soon as it is live or refused, or another one is wanted. WaitTimeoutError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            row = there.version(row["bundle_name"], row["version_number"])
            if row["is_live"] or row["state"] == "refused" or not row["is_wanted"]:
                return row
        except UnreachableError:
            if time.monotonic() >= deadline:
                raise
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"Version {row['version_number']} of bundle {row['bundle_name']} is not parsed after {timeout_s:g} s, and goes live"
                " when it is: check with `paceline doctor` that a scheduler runs."
            )
        time.sleep(POLL_S)


def _stored(row: Row) -> str:
    name = f"Version {row['version_number']} of bundle {row['bundle_name']}"
    counts = ", ".join(f"{len(row[kind])} {kind}" for kind in ("added", "changed", "removed"))
    return f"{name} {'is stored' if row['is_new'] else 'has these files'}: {output.count(row['file_count'], 'file')} ({counts})."


def origin_of(folder: Path) -> str:
    """Where the files of a folder come from: the commit of its Git work tree, or else this machine and the path."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return f"{socket.gethostname()}:{folder.resolve()}"[:LONGEST_ORIGIN]
    remote = urlsplit(_git(folder, "config", "--get", "remote.origin.url") or "")
    place = remote._replace(netloc=remote.netloc.rpartition("@")[2]).geturl() if remote.netloc else remote.geturl()
    changed = " with changes that are not committed" if _git(folder, "status", "--porcelain", "--", ".") else ""
    return f"{place + '@' if place else ''}{commit}"[: LONGEST_ORIGIN - len(changed)] + changed


def _git(folder: Path, *arguments: str) -> str | None:
    """The answer of Git about a folder; None if it has none."""
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@click.group(cls=lazy.NounGroup)
def bundles() -> None:
    """List bundles, which `paceline deploy` creates, with their versions and files."""


@bundles.command("list")
@options.as_table
def list_() -> None:
    """List bundles with their live versions."""
    from scheduler.store.read import bundles as reads

    rows = options.transact(reads.all_bundles)
    output.listing(rows, BUNDLES, empty="No bundles: `paceline deploy DIR` creates one.")


@bundles.command()
@name
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number, newest first.")
@options.as_table
def versions(bundle: str, *, limit: int) -> None:
    """List the versions of a bundle, newest first, with their runs and problems."""
    from scheduler.store.read import bundles as reads

    rows = options.transact(reads.versions, bundle, limit)
    output.listing(rows, VERSIONS, empty=f"Bundle {bundle} has no versions.")
    if not output.json_wanted():
        for row in rows:
            for problem in row["problems"] or ():
                line = f":{problem['line']}" if problem.get("line") else ""
                output.say(f"Version {row['version_number']}: {problem['file']}{line}: {problem['message']}")


@bundles.command()
@name
@click.argument("version", type=click.IntRange(1, lazy.LARGEST))
@options.as_table
def files(bundle: str, version: int) -> None:
    """List the files of a version."""
    from scheduler.store.read import bundles as reads

    rows = options.transact(reads.files, bundle, version)
    output.listing(rows, ["path", "byte_count", "is_executable", "digest"], empty="No files.")


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
