"""`paceline migrate-airflow`: rewrites a folder of Airflow DAG files, and imports connections, variables and pools."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import options, output

if TYPE_CHECKING:
    from scheduler.dagfiles.migrate.folder import FileReport
    from scheduler.dagfiles.migrate.shadow import Airflow, Difference


FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command("migrate-airflow")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False)
@click.option("--diff", is_flag=True, help="Print the changes as a patch.")
@click.option("--write", is_flag=True, help="Change the files. Without it, nothing is written.")
@click.option("--no-compare", is_flag=True, help="Do not load the unchanged files to compare their DAGs.")
@click.option("--connections", type=FILE, help="A file of `airflow connections export` to import.")
@click.option("--variables", type=FILE, help="A file of `airflow variables export` to import.")
@click.option("--pools", type=FILE, help="A file of `airflow pools export` to import.")
@click.option("--overwrite", is_flag=True, help="Replace connections and variables that exist. Pools always get the new values.")
@click.option(
    "--shadow",
    metavar="URL",
    help="Address of an Airflow 3, to compare its finished runs with those here by DAG and logical date."
    " AIRFLOW_API_TOKEN, or AIRFLOW_API_USER and AIRFLOW_API_PASSWORD, log in there.",
)
@click.option("--dag", "dags", metavar="DAG", multiple=True, help="With --shadow: only this DAG; may be repeated.")
@click.option("--since", type=options.MOMENT, help="With --shadow: only runs from this logical date on. Default: a day ago.")
@click.option("--every", type=click.FloatRange(min=1), help="With --shadow: compare again every so many seconds, until Ctrl-C.")
@options.as_json
def migrate_airflow(
    folder: Path | None, *, diff: bool, write: bool, no_compare: bool, shadow: str | None, dags: tuple[str, ...],
    since: datetime | None, every: float | None, **exports: Any,
) -> None:  # fmt: skip
    """Rewrite the DAG files in DIR that were written for Apache Airflow.

    Imports get Paceline's names, and old arguments their new names. Comments and layout stay, and a second run changes
    nothing. Each file is loaded before and after the rewrite, and its DAGs are compared. Exit code 1: a file does not load,
    its DAGs differ, or with --shadow a state differs.
    """
    overwrite = exports.pop("overwrite")
    if folder is None and shadow is None and not any(exports.values()):
        raise click.UsageError("Give a folder of DAG files, a file to import, or --shadow.")
    if shadow is None and (dags or since or every):
        raise click.UsageError("--dag, --since and --every are for --shadow.")
    if any(exports.values()):
        _import(overwrite=overwrite, **exports)
    if folder is not None:
        _migrate(folder, diff=diff, write=write, compare=not no_compare)
    if shadow is not None:
        _compare_runs(shadow, dags, since=since or datetime.now(UTC) - timedelta(days=1), every=every)


def _migrate(folder: Path, *, diff: bool, write: bool, compare: bool) -> None:
    from scheduler.dagfiles.migrate import folder as migration

    reports = migration.migrate(folder, options.settings(), compare=compare)
    changed = [report for report in reports if report.is_changed]
    if write:
        for report in changed:
            migration.write(folder, report)
    loaded = [report for report in reports if report.after is not None]
    summary = {
        "dag_files": len(loaded),
        "loaded_before": sum(report.before is not None and not report.before.problem for report in loaded) if compare else None,
        "loaded_after": sum(report.loads for report in loaded),
        "changed": len(changed),
        "written": len(changed) if write else 0,
    }
    if output.json_wanted():
        output.print_json({**summary, "files": [_row(report, diff=diff) for report in reports if _is_shown(report)]})
    else:
        _print(reports, summary, diff=diff)
    if any(not report.loads or report.differences for report in loaded):
        click.get_current_context().exit(1)


def _is_shown(report: FileReport) -> bool:
    return report.is_changed or bool(report.rewritten.unsupported) or report.after is not None


def _print(reports: Sequence[FileReport], summary: dict[str, Any], *, diff: bool) -> None:
    for report in filter(_is_shown, reports):
        if diff:
            click.echo(_diff(report), nl=False)
            continue
        click.echo(f"{report.path}: {_state(report)}, {output.count(len(report.rewritten.changes), 'change')}")
        for line, text in _complaints(report):
            click.echo(f"    {f'line {line}: ' if line else ''}{output.visible(text)}")
    output.say(
        f"{summary['loaded_after']} of {output.count(summary['dag_files'], 'DAG file')} load after the rewrite. "
        + (
            f"{output.count(summary['written'], 'file')} changed."
            if summary["written"]
            else f"{output.count(summary['changed'], 'file')} would change: --diff shows the changes, --write makes them."
        )
    )


def _complaints(report: FileReport) -> list[tuple[int | None, str]]:
    """The lines of a file that still need work. The load error of a file may repeat what the rewrite has found already."""
    notes: list[tuple[int | None, str]] = [(note.line, note.text) for note in report.rewritten.unsupported]
    if report.after is not None and report.after.problem and report.after.line not in {line for line, _ in notes}:
        notes.append((report.after.line, report.after.problem))
    return notes + [(None, text) for text in report.differences]


def _state(report: FileReport) -> str:
    if report.after is None:
        return "a module"
    if not report.loads:
        return "does not load"
    hook = " with core.airflow_imports, for its provider packages" if report.after.with_hook else ""
    return f"loads{hook} ({output.count(len(report.after.dags), 'DAG')})"


def _row(report: FileReport, *, diff: bool) -> dict[str, Any]:
    notes = {
        name: [{"line": note.line, "text": note.text} for note in getattr(report.rewritten, name)]
        for name in ("changes", "unsupported")
    }
    return {
        "file": report.path,
        "loads_before": None if report.before is None else not report.before.problem,
        "loads_after": None if report.after is None else report.loads,
        "needs_airflow_imports": report.after is not None and report.after.with_hook,
        "dags": [] if report.after is None else sorted(report.after.dags),
        "problem": report.after.problem if report.after is not None else "",
        "problem_line": report.after.line if report.after is not None else None,
        "differences": report.differences,
        **notes,
        **({"diff": _diff(report)} if diff else {}),
    }


def _diff(report: FileReport) -> str:
    if not report.is_changed:
        return ""
    old, new = (content.decode("utf-8", "replace").splitlines(keepends=True) for content in (report.old, report.rewritten.content))
    lines = difflib.unified_diff(old, new, f"a/{report.path}", f"b/{report.path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _import(*, connections: Path | None, variables: Path | None, pools: Path | None, overwrite: bool) -> None:
    """Store the content of all files, or nothing."""
    from scheduler.actions import stored
    from scheduler.cli import connections as connections_cli
    from scheduler.cli import pools as pools_cli
    from scheduler.cli import variables as variables_cli

    new_connections = connections_cli.read(connections) if connections else []
    new_variables = variables_cli.read(variables) if variables else []
    new_pools = pools_cli.read(pools) if pools else {}
    new = stored.New(new_variables, new_connections, new_pools)
    written = stored.store(options.actor(), new, existing="overwrite" if overwrite else "skip")
    kinds = (
        (written.connections, new_connections, "connection"), (written.variables, new_variables, "variable"),
        (written.pools, new_pools, "pool"),
    )  # fmt: skip
    texts = [f"{len(done)} of {output.count(len(given), noun)}" for done, given, noun in kinds if given]
    output.say(f"{', '.join(texts) or 'Nothing'} stored.")


TOKEN, USER, PASSWORD = "AIRFLOW_API_TOKEN", "AIRFLOW_API_USER", "AIRFLOW_API_PASSWORD"


def _compare_runs(url: str, dag_ids: Sequence[str], *, since: datetime, every: float | None) -> None:
    """Compare all finished runs since then, again every so many seconds if `every` is given. Each run is reported once.

    Ends the command with exit code 1 if a state differs.
    """
    from scheduler.dagfiles.migrate.shadow import compare
    from scheduler.store.read import reads

    airflow = _client(url)
    done: set[tuple[str, str]] = set()
    differences: list[Difference] = []
    while True:
        chosen = dag_ids or [row["dag_id"] for row in options.transact(reads.dags)]
        new = [difference for dag_id in chosen for difference in compare(options.engine(), airflow, dag_id, since, done)]
        differences += new
        if every is None and output.json_wanted():
            output.print_json({"runs": len(done), "differences": [asdict(difference) for difference in differences]})
        else:
            _print_shadow(new)
            output.say(f"{output.count(len(done), 'run')} compared, {output.count(len(differences), 'difference')}.")
        if every is None:
            break
        time.sleep(every)
    if differences:
        click.get_current_context().exit(1)


def _client(url: str) -> Airflow:
    from scheduler.dagfiles.migrate.shadow import Airflow

    if token := os.environ.get(TOKEN):
        return Airflow(url, token)
    if USER not in os.environ or PASSWORD not in os.environ:
        raise click.UsageError(f"Set {TOKEN}, or {USER} and {PASSWORD}, to a user who may read DAG runs in Airflow.")
    return Airflow.log_in(url, os.environ[USER], os.environ[PASSWORD])


def _print_shadow(differences: Sequence[Difference]) -> None:
    from scheduler.dagfiles.migrate.shadow import MISSING

    rows = [{**asdict(one), "airflow": one.airflow or MISSING, "paceline": one.paceline or MISSING} for one in differences]
    if rows:
        output.table(rows, ["dag_id", "logical_date", "task_id", "map_index", "airflow", "paceline"], empty="")
