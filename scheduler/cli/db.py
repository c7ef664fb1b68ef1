"""`paceline db`: migrates and checks the schema, and manages roles and keys."""

from typing import TYPE_CHECKING

import click

from scheduler.cli import options, output
from scheduler.cli.clean import clean
from scheduler.cli.lazy import Later

if TYPE_CHECKING:
    from scheduler.store.db import migrate as schema
    from scheduler.store.db import roles
else:
    schema = Later("scheduler.store.db.migrate")
    roles = Later("scheduler.store.db.roles")


@click.group()
def db() -> None:
    """Create, migrate and check the database schema."""


db.add_command(clean)


@db.command("rotate-fernet-key")
def rotate_fernet_key() -> None:
    """Encrypt all variables and connections again with the newest key.

    The newest key is the first key of core.fernet_key.
    """
    from scheduler.store.secrets import connections, variables
    from scheduler.store.secrets.cipher import Cipher

    options.engine()  # the error about an unreachable database comes first
    cipher = Cipher.of(options.settings(), make=True)
    count = options.transact(variables.rotate, cipher) + options.transact(connections.rotate, cipher)
    click.echo(f"{count} variables and connections are encrypted with the first key; you can remove the others.")


@db.command()
def migrate() -> None:
    """Upgrade the schema to this version in one transaction. Safe to run repeatedly and concurrently.

    The command connects with PACELINE_DATABASE_OWNER_URL or, if that is unset, PACELINE_DATABASE_URL. That role owns the tables. If
    the roles of PACELINE_DATABASE_URL and PACELINE_WORKER_DATABASE_URL do not exist, the command creates them with their passwords.
    """
    settings = options.settings()
    engine = options.engine(check_schema=False, as_owner=True)
    revision = schema.migrate(
        engine,
        default_pool_slots=settings.core.default_pool_task_slot_count,
        worker_role=roles.Wanted.of(settings),
        scheduler_role=roles.Wanted.of_schedulers(settings),
    )
    click.echo(f"The schema is at {revision}.")


@db.command("grant-worker")
@click.argument("role", metavar="ROLE")
@click.option("--may-clear-runs", is_flag=True, help="Also grant the rights for TriggerDagRunOperator(reset_dag_run=True).")
def grant_worker(role: str, may_clear_runs: bool) -> None:
    """Grant a database role the rights of workers and waiters.

    The role gets exactly the rights it needs, now and after each migration.

    `paceline db migrate` does this for the role of PACELINE_WORKER_DATABASE_URL. Create any other role first (`create role ...
    login password ...`).
    """
    from scheduler.store.db.database import transact

    transact(options.engine(as_owner=True), roles.grant_worker, role, may_clear_runs=may_clear_runs)
    click.echo(f"{role} has the rights of a worker{' that may clear runs' if may_clear_runs else ''}, and no others here.")


@db.command()
@options.as_json
def check(json_wanted: bool) -> None:
    """Check the database. Exit 0 if it is reachable and its schema matches this version, else 4."""
    options.engine()
    if json_wanted:
        output.print_json({"ok": True, "schema": schema.head()})
    else:
        click.echo(f"The database answers; its schema is at {schema.head()}.")
