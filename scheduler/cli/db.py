"""`paceline db`: migrates and checks the schema, and manages roles and keys."""

import contextlib
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.exceptions import ConflictError
from scheduler.cli import lazy, options, output

if TYPE_CHECKING:
    from sqlalchemy import Engine

#: Kinds of records that are listed even if none is deleted.
ALWAYS = ("runs", "task_instances")


@click.group(cls=lazy.NounGroup)
def db() -> None:
    """Create, migrate and check the database schema."""


@db.command()
@click.option("--before", type=options.MOMENT, required=True, help="Delete records that ended before this time.")
@click.option("--logs", is_flag=True, help="Also delete the log folders of the runs on this machine.")
@click.option("--dry-run", is_flag=True, help="Count the records without deleting them.")
@options.yes
@options.as_json
def clean(*, before: datetime, logs: bool, dry_run: bool, yes: bool) -> None:
    """Delete finished runs with all their records, and other old records. Safe to run at any time.

    The last run of each DAG that was not triggered manually stays, as do runs that later runs depend on. The [retention] settings
    run the same cleanup automatically.
    """
    from scheduler.actions.installation import clean
    from scheduler.store.upkeep import retention

    options.engine()

    def would_delete() -> None:
        _print_counts(options.transact(retention.count, before), before, done=False)

    if dry_run:
        would_delete()
        return
    options.confirm(f"Delete finished runs and other records that ended before {before}?", yes, show=would_delete)
    deleted: Counter[str] = Counter(dict.fromkeys((*ALWAYS, *retention.KINDS), 0))
    for kind, batch in clean(options.actor(), before, logs=logs):
        deleted[kind] += batch.deleted
        deleted["task_instances"] += sum(run.instances for run in batch.runs)
    _print_counts(deleted, before, done=True)


@db.command("rotate-fernet-key")
def rotate_fernet_key() -> None:
    """Encrypt all variables and connections again with the newest key.

    The newest key is the first key of core.fernet_key.
    """
    from scheduler.store.secrets import connections, variables

    cipher = options.cipher(make=True)
    count = options.transact(variables.rotate, cipher) + options.transact(connections.rotate, cipher)
    click.echo(f"Encrypted {output.count(count, 'value')} with the first key; you can remove the others.")


@db.command()
@options.wait_s
def migrate(*, wait_s: float) -> None:
    """Upgrade the schema to this version in one transaction. Safe to run repeatedly and concurrently.

    The command connects with PACELINE_DATABASE_OWNER_URL or, if that is unset, PACELINE_DATABASE_URL. That role owns the tables. If
    the roles of PACELINE_DATABASE_URL, PACELINE_WORKER_DATABASE_URL and PACELINE_WEB_DATABASE_URL do not exist, the command creates
    them with their passwords.
    """
    click.echo(f"The schema is at {_migrate(wait_s)}.")


@db.command()
@options.yes
def downgrade(*, yes: bool) -> None:
    """Undo the newest migration, after a return to the previous version of Paceline.

    Run it with the newer version, after all its processes have ended. This is not needed if the previous version works with the
    newer schema (docs/how-to/upgrade.md). Data that only the newer version stores is deleted.
    """
    from scheduler.store.db import migrate as schema

    engine = options.engine(as_owner=True)
    options.confirm(f"Undo the migration {schema.head()}, and delete the data that only it stores?", yes)
    click.echo(f"The schema is at {schema.downgrade(engine)}.")


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def backup(file: Path) -> None:
    """Write a backup of the database to FILE while everything runs. It holds the state of one moment.

    Back up the key of variables and connections (core.fernet_key or the file fernet.key), the DataFrames of tasks and the logs
    separately. The command connects with PACELINE_DATABASE_OWNER_URL or, if that is unset, PACELINE_DATABASE_URL.
    """
    from scheduler.embedded import backup as backups

    backups.dump(options.settings(), _server_version(options.engine(as_owner=True)), file)
    output.say(f"The database is in {file} ({file.stat().st_size:,} bytes).")


@db.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def restore(file: Path) -> None:
    """Load the backup FILE into an empty database, and upgrade its schema to this version.

    With the embedded PostgreSQL, the command starts the server of PACELINE_HOME for this time, so no stack may run there. End all
    processes of the old installation first: both would run the same tasks.
    """
    from scheduler.embedded import backup as backups
    from scheduler.embedded import servers
    from scheduler.store.db import migrate as schema

    settings = options.settings()
    server = servers.embedded_servers(settings, say=output.say) if settings.database.url is None else contextlib.nullcontext()
    with server:
        engine = options.engine(check_schema=False, as_owner=True)
        with engine.connect() as connection:
            if schema.current(connection) is not None:
                raise ConflictError("The database has tables of Paceline: restore into an empty database.")
        backups.load(settings, _server_version(engine), file)
        click.echo(f"The backup is restored; its schema is at {_migrate()}.")
        engine.dispose()  # before its server ends


@db.command("grant-worker")
@click.argument("role", metavar="ROLE")
@click.option("--may-clear-runs", is_flag=True, help="Also grant the rights for TriggerDagRunOperator(reset_dag_run=True).")
def grant_worker(role: str, may_clear_runs: bool) -> None:
    """Grant a database role the rights of workers and waiters.

    The role gets exactly the rights it needs, now and after each migration.

    `paceline db migrate` does this for the role of PACELINE_WORKER_DATABASE_URL. Create any other role first (`create role ...
    login password ...`).
    """
    from scheduler.store.db import database, roles

    database.transact(options.engine(as_owner=True), roles.grant_worker, role, may_clear_runs=may_clear_runs)
    click.echo(f"{role} has the rights of a worker{' that may clear runs' if may_clear_runs else ''}, and no others here.")


@db.command()
@options.wait_s
@options.as_json
def check(*, wait_s: float) -> None:
    """Check the database. Exit 0 if it is reachable and its schema matches this version, else 4.

    With --wait, a container or unit that starts before the database, or before its migration, waits in one process.
    """
    from scheduler.store.db import migrate as schema

    options.engine(wait_s=wait_s)
    output.result({"ok": True, "schema": schema.head()}, f"The database answers; its schema is at {schema.head()}.")


def _server_version(engine: "Engine") -> int:
    """The major version of the server to which `engine` has connected."""
    return int((engine.dialect.server_version_info or (0,))[0])


def _migrate(wait_s: float = 0.0) -> str:
    """Upgrade the schema, and create the roles of the settings. Return the revision."""
    from scheduler.store.db import migrate as schema

    return schema.migrate_as_set(options.engine(check_schema=False, as_owner=True, wait_s=wait_s), options.settings())


def _print_counts(counts: Mapping[str, int], before: datetime, *, done: bool) -> None:
    if output.json_wanted():
        output.print_json({"before": before, "dry_run": not done, "deleted" if done else "would_delete": dict(counts)})
        return
    rows = [{"what": kind.replace("_", " "), "rows": count} for kind, count in counts.items() if count or kind in ALWAYS]
    output.table(rows, ["what", "rows"], empty="Nothing.")
    output.say("Deleted." if done else "Nothing is deleted yet.")
