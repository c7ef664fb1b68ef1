"""The database role of workers and waiters: the rights that claiming, running, reporting and following need, and no others.

A worker runs the author's code, so its role can reach what the author's code must not: it may not delete a run, change what a
DAG is, a pool, a schedule or a connection, nor read notices, import errors, backfills and events.
"""

import contextlib
from dataclasses import dataclass

from psycopg2 import sql
from psycopg2.extensions import encrypt_password, parse_dsn
from sqlalchemy import Connection

from scheduler.exceptions import NotFoundError, PacelineError
from scheduler.settings import Settings
from scheduler.store.database import transaction

#: Table, and what may be done with it; a tuple names the columns that may be changed.
Rights = dict[str, tuple[str | tuple[str, ...], ...]]

#: What a dispatch changes of its own task instance, and of those that follow.
MOVED = (
    "state", "worker", "reason", "started_at", "ended_at", "due_at", "resume", "decision", "asked", "try_number", "scheduled_at",
    "queued_at", "queued_by", "dispatch_id", "dispatched_at", "map_label",
)  # fmt: skip
WORKER: Rights = {
    "paceline_schema": ("select",),
    "crash_free": ("select", "insert"),
    "dag": ("select",),
    "dag_version": ("select",),
    "dag_schedule": ("select",),
    # To make runs, as TriggerDagRunOperator does.
    "pool": ("select",),
    "dag_run": ("select", "insert"),
    "task_instance": ("select", "insert", MOVED),
    "deadline": ("select", "insert", ("due_at", "missed_at")),
    "task_try": ("insert",),
    "task_progress": ("select", "insert", "update"),
    "xcom": ("select", "insert", "update", "delete"),
    "deferral": ("select", "insert", "update", "delete"),
    "process": ("select", "insert", "update"),
    "external_job": ("select", "insert", "update"),
    "variable": ("select", "insert", "update", "delete"),
    "connection": ("select",),
    "asset": ("select",),
    "asset_event": ("select",),
    "dag_run_asset_event": ("select",),
}
#: For TriggerDagRunOperator(reset_dag_run=True).
CLEAR_RUNS: Rights = {
    "dag_schedule": (("is_paused",),),  # to lock it, which PostgreSQL grants with the right to change it
    "dag_run": (
        ("state", "version_id", "queued_at", "started_at", "ended_at", "examined_at", "timeout_at", "clear_number", "notify"),
    ),
    "task_instance": ("update", "delete"),
    "deadline": ("delete",),
    "task_try": ("select",),
    "backfill": ("select",),
}


@dataclass(frozen=True, slots=True)
class Granted:
    """A role with the rights of a worker; with `may_clear_runs` tasks may let runs that are there run again."""

    name: str
    may_clear_runs: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """A role that a migration makes if it is missing: the user, and the password if it has one, of a URL."""

    url: str
    may_clear_runs: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "Wanted | None":
        """What workers connect as, unless that is what schedulers connect as. One person's own server holds no task back."""
        if settings.worker_database_url == settings.database_url:
            return None
        return cls(settings.worker_database_url, may_clear_runs=settings.database.url is None)


@transaction
def grant_worker(connection: Connection, role: str, *, may_clear_runs: bool = False) -> None:
    """Give `role` exactly the rights of a worker; what else it had in this schema is taken away. NotFoundError."""
    _refuse_unfit(connection, role)
    connection.exec_driver_sql(
        "insert into worker_role (name, may_clear_runs) values (%s, %s)"
        " on conflict (name) do update set may_clear_runs = excluded.may_clear_runs",
        (role, may_clear_runs),
    )
    _grant(connection, Granted(role, may_clear_runs))


def make_worker(connection: Connection, wanted: Wanted) -> None:
    """Let there be this role, to be granted by `renew`. One that is there keeps its password and what it was granted."""
    parts = parse_dsn(wanted.url)
    role = parts.get("user")
    if role is None:
        raise PacelineError("worker.database_url names no user: write postgresql://user:password@host:port/name.")
    if connection.exec_driver_sql("select from pg_roles where rolname = %s", (role,)).first() is None:
        _create(connection, role, parts.get("password"))
    _refuse_unfit(connection, role)
    connection.exec_driver_sql(
        "insert into worker_role (name, may_clear_runs) values (%s, %s)"
        " on conflict (name) do update set may_clear_runs = worker_role.may_clear_runs or excluded.may_clear_runs",
        (role, wanted.may_clear_runs),
    )


def _create(connection: Connection, role: str, password: str | None) -> None:
    me, may = connection.exec_driver_sql(
        "select rolname, rolsuper or rolcreaterole from pg_roles where rolname = current_user"
    ).one()
    if not may:
        raise PacelineError(
            f"There is no database role {role!r}, and {me!r} may not make one: make it with `create role ... login password ...`."
        )
    statement = sql.SQL("create role {} login").format(sql.Identifier(role))
    with contextlib.closing(connection.connection.cursor()) as cursor:
        if password is not None:
            # Made unreadable here: the server may write statements into its log.
            unreadable = encrypt_password(password, role, connection.connection.driver_connection)
            statement += sql.SQL(" password {}").format(sql.Literal(unreadable))
        cursor.execute(statement)


def _refuse_unfit(connection: Connection, role: str) -> None:
    """NotFoundError, or PacelineError for a role that no grant could hold back."""
    found = connection.exec_driver_sql(
        "select rolsuper, pg_has_role(rolname, (select tableowner from pg_tables where schemaname = current_schema()"
        " and tablename = 'dag_run'), 'member') from pg_roles where rolname = %s",
        (role,),
    ).first()
    if found is None:
        raise NotFoundError(f"There is no database role {role!r}: make it with `create role ... login password ...`.")
    if found[0] or found[1]:
        raise PacelineError(f"Role {role!r} is a superuser or owns the tables, so it can do everything: name another role.")


@transaction
def granted(connection: Connection) -> list[Granted]:
    """The roles that have the rights of a worker."""
    return _granted(connection)


def renew(connection: Connection) -> None:
    """Grant again what this version of Paceline needs, after a migration."""
    for one in _granted(connection):
        _grant(connection, one)


def _granted(connection: Connection) -> list[Granted]:
    rows = connection.exec_driver_sql(
        "select name, may_clear_runs from worker_role where name in (select rolname from pg_roles) order by name"
    )
    return [Granted(*row) for row in rows]


def _grant(connection: Connection, one: Granted) -> None:
    schema = sql.Identifier(connection.exec_driver_sql("select current_schema()").scalar_one())
    role = sql.Identifier(one.name)
    # Before PostgreSQL 15 everybody may make tables and functions in the schema public, and so put them in the way of ours.
    statements = [
        sql.SQL("revoke create on schema {} from public").format(schema),
        sql.SQL("revoke all on all tables in schema {} from {}").format(schema, role),
        sql.SQL("grant usage on schema {} to {}").format(schema, role),
    ]
    for rights in (WORKER, CLEAR_RUNS) if one.may_clear_runs else (WORKER,):
        for table, kinds in rights.items():
            for kind in kinds:
                right = sql.SQL(kind) if isinstance(kind, str) else _of_columns(kind)
                statements.append(sql.SQL("grant {} on {}.{} to {}").format(right, schema, sql.Identifier(table), role))
    with contextlib.closing(connection.connection.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)


def _of_columns(columns: tuple[str, ...]) -> sql.Composed:
    return sql.SQL("update ({})").format(sql.SQL(", ").join(map(sql.Identifier, columns)))
