"""The database roles of workers and waiters, and of schedulers: what each needs, and nothing else.

A worker runs the author's code, so its role must not reach what the author's code must not: it may not delete a run, change a DAG,
a pool, a schedule or a connection, nor read notices, import errors, backfills and events. Schedulers, and the commands of people,
read and write every row, but own nothing: they cannot change the schema. Only migrating needs the owner.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from psycopg2 import sql
from psycopg2.extensions import encrypt_password, parse_dsn
from sqlalchemy import Connection

from scheduler.exceptions import NotFoundError, PacelineError
from scheduler.settings import Settings
from scheduler.store.db import rows


@dataclass(frozen=True, slots=True)
class Only:
    """A right on some columns of a table."""

    kind: str
    columns: tuple[str, ...]


#: Table, and what may be done with it.
Rights = dict[str, tuple[str | Only, ...]]

#: What a dispatch changes of its own task instance, and of those that follow.
MOVED = (
    "state", "worker", "reason", "started_at", "ended_at", "due_at", "resume", "decision", "asked", "try_number", "scheduled_at",
    "queued_at", "queued_by", "dispatch_id", "dispatched_at", "map_label",
)  # fmt: skip
#: What a new task instance is made of: it has no state yet.
NEW_INSTANCE = (
    "dag_run_id", "task_no", "task_id", "max_tries", "queue", "pool", "pool_slots", "priority_weight", "rank", "notify",
    "max_active_tis_per_dag", "max_active_tis_per_dagrun",
)  # fmt: skip
#: Not `db_role`, which says who registered it.
NEW_PROCESS = ("id", "kind", "name", "host", "pid", "queues", "concurrency", "schema")
WORKER: Rights = {
    "paceline_schema": ("select",),
    "crash_free": ("select", "insert"),
    "dag": ("select",),
    "dag_version": ("select",),
    "dag_schedule": ("select",),
    # To make runs, as TriggerDagRunOperator does.
    "pool": ("select",),
    "dag_run": ("select", "insert"),
    "task_instance": ("select", Only("insert", NEW_INSTANCE), Only("update", MOVED)),
    "deadline": ("select", "insert", Only("update", ("due_at", "missed_at"))),
    "task_try": ("insert",),
    "task_progress": ("select", "insert", "update"),
    "xcom": ("select", "insert", "update", "delete"),
    "deferral": ("select", "insert", "update", "delete"),
    "process": ("select", Only("insert", NEW_PROCESS), Only("update", ("heartbeat_at", "stopped_at", "settings"))),
    "external_job": ("select", "insert", "update"),
    "variable": ("select", "insert", "update", "delete"),
    "connection": ("select",),
    "asset": ("select",),
    "asset_event": ("select",),
    "dag_run_asset_event": ("select",),
}
#: For TriggerDagRunOperator(reset_dag_run=True).
CLEAR_RUNS: Rights = {
    "dag_schedule": (Only("update", ("is_paused",)),),  # to lock it, which PostgreSQL grants with the right to change it
    "dag_run": (
        Only(
            "update",
            ("state", "version_id", "queued_at", "started_at", "ended_at", "examined_at", "timeout_at", "clear_number", "notify"),
        ),
    ),
    "task_instance": ("update", "delete"),
    "deadline": ("delete",),
    "task_try": ("select",),
    "backfill": ("select",),
}


#: Of everything that is there now; what a migration adds is granted by it.
SCHEDULER = (
    "revoke create on schema {schema} from public, {role}",
    "grant usage on schema {schema} to {role}",
    "grant select, insert, update, delete on all tables in schema {schema} to {role}",
    "grant execute on function {schema}.analyze_task_instance() to {role}",
    # Only migrating writes which version this schema is for.
    "revoke insert, update, delete on {schema}.paceline_schema from {role}",
    "grant update (record_events) on {schema}.paceline_schema to {role}",
    "revoke insert, update, delete on {schema}.worker_role, {schema}.scheduler_role from {role}",
)
#: Predefined roles whose members reach rows and files beside all grants.
PREDEFINED = (
    "pg_read_all_data", "pg_write_all_data", "pg_maintain", "pg_read_server_files", "pg_write_server_files",
    "pg_execute_server_program", "pg_signal_backend", "pg_checkpoint", "pg_create_subscription",
)  # fmt: skip


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
        if settings.worker_database_url in (settings.database_url, settings.owner_database_url):
            return None
        return cls(settings.worker_database_url, may_clear_runs=settings.database.url is None)

    @classmethod
    def of_schedulers(cls, settings: Settings) -> "Wanted | None":
        """What schedulers connect as, unless that is the owner of the tables."""
        return None if settings.database_url == settings.owner_database_url else cls(settings.database_url)


def grant_worker(connection: Connection, role: str, *, may_clear_runs: bool = False) -> None:
    """Give `role` exactly the rights of a worker; what else it had in this schema is taken away. NotFoundError."""
    _refuse_unfit(connection, role)
    _refuse_second_use(connection, role, "worker")
    connection.exec_driver_sql(
        "insert into worker_role (name, may_clear_runs) values (%s, %s)"
        " on conflict (name) do update set may_clear_runs = excluded.may_clear_runs",
        (role, may_clear_runs),
    )
    _execute(connection, role, _of_worker(Granted(role, may_clear_runs)))


def make(connection: Connection, worker: Wanted | None, scheduler: Wanted | None) -> None:
    """Let there be these roles, to be granted by `renew`. One that is there keeps its password and what it was granted."""
    if scheduler is not None:
        role = _let_there_be(connection, scheduler, "database.url")
        _refuse_second_use(connection, role, "scheduler")
        connection.exec_driver_sql("insert into scheduler_role (name) values (%s) on conflict do nothing", (role,))
    if worker is not None:
        role = _let_there_be(connection, worker, "worker.database_url")
        _refuse_second_use(connection, role, "worker")
        connection.exec_driver_sql(
            "insert into worker_role (name, may_clear_runs) values (%s, %s)"
            " on conflict (name) do update set may_clear_runs = worker_role.may_clear_runs or excluded.may_clear_runs",
            (role, worker.may_clear_runs),
        )


def renew(connection: Connection) -> None:
    """Grant again what this version of Paceline needs, after a migration."""
    schedulers = connection.exec_driver_sql(
        "select name from scheduler_role where name in (select rolname from pg_roles) order by name"
    )
    for role in schedulers.scalars().all():
        _execute(connection, role, ((statement, {}) for statement in SCHEDULER))
    for one in _granted(connection):
        _execute(connection, one.name, _of_worker(one))


def granted(connection: Connection) -> list[Granted]:
    """The roles that have the rights of a worker."""
    return _granted(connection)


def excesses(connection: Connection) -> list[tuple[str, str, str]]:
    """What roles of workers have beyond their rights that only the owner of the database can take: role, right, statement."""
    found = connection.exec_driver_sql(
        """
        select w.name, 'make temporary tables', format('revoke temporary on database %%I from public', current_database())
          from worker_role w join pg_roles r on r.rolname = w.name
         where has_database_privilege(w.name, current_database(), 'temporary')
        union all
        select w.name, 'make tables and functions in the schema ' || current_schema(),
               format('revoke create on schema %%I from public', current_schema())
          from worker_role w join pg_roles r on r.rolname = w.name
         where has_schema_privilege(w.name, current_schema(), 'create')
         order by 1, 2
        """
    )
    return [(role, right, statement) for role, right, statement in found]


def _let_there_be(connection: Connection, wanted: Wanted, setting: str) -> str:
    parts = parse_dsn(wanted.url)
    role = parts.get("user")
    if role is None:
        raise PacelineError(f"{setting} names no user: write postgresql://user:password@host:port/name.")
    if connection.exec_driver_sql("select from pg_roles where rolname = %s", (role,)).first() is None:
        _create(connection, role, parts.get("password"))
    _refuse_unfit(connection, role)
    return str(role)


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
        """
        select r.rolsuper or pg_has_role(r.rolname, c.relowner, 'member') as owns,
               r.rolcreaterole or r.rolreplication or r.rolbypassrls as privileged,
               (select min(p.rolname) from pg_roles p
                 where p.rolname = any(%s) and pg_has_role(r.rolname, p.oid, 'member')) as member
          from pg_roles r, pg_class c where r.rolname = %s and c.oid = 'dag_run'::regclass
        """,
        (list(PREDEFINED), role),
    ).first()
    if found is None:
        raise NotFoundError(f"There is no database role {role!r}: make it with `create role ... login password ...`.")
    if found.owns:
        raise PacelineError(f"Role {role!r} is a superuser or owns the tables, so it can do everything: name another role.")
    if found.privileged:
        raise PacelineError(
            f"Role {role!r} has createrole, replication or bypassrls, so no grant holds it back: name another role."
        )
    if found.member is not None:
        raise PacelineError(f"Role {role!r} is a member of {found.member}, which no grant holds back: name another role.")


def _refuse_second_use(connection: Connection, role: str, kind: str) -> None:
    used = connection.exec_driver_sql(
        "select from (select name, 'worker' as kind from worker_role union all select name, 'scheduler' from scheduler_role) r"
        " where name = %s and kind <> %s",
        (role, kind),
    ).first()
    if used is not None:
        raise PacelineError(f"Role {role!r} serves both schedulers and workers: give each a role of its own.")


def _granted(connection: Connection) -> list[Granted]:
    granted = connection.exec_driver_sql(
        "select name, may_clear_runs from worker_role where name in (select rolname from pg_roles) order by name"
    )
    return rows.of_result(Granted, granted)


def _of_worker(one: Granted) -> Iterator[tuple[str, dict[str, sql.Composable]]]:
    # Who may make a table, a type or a function where our names are looked up could put it in the way of ours. Before
    # PostgreSQL 15 everybody may in the schema public, and in all versions everybody may make temporary ones.
    yield "revoke create on schema {schema} from public, {role}", {}
    yield "revoke create, temporary on database {database} from public, {role}", {}
    yield "revoke all on all tables in schema {schema} from {role}", {}
    yield "revoke all on all sequences in schema {schema} from {role}", {}
    yield "revoke all on all functions in schema {schema} from {role}", {}
    yield "grant usage on schema {schema} to {role}", {}
    for rights in (WORKER, CLEAR_RUNS) if one.may_clear_runs else (WORKER,):
        for table, kinds in rights.items():
            for right in kinds:
                names: dict[str, sql.Composable] = {
                    "right": sql.SQL(right) if isinstance(right, str) else _of_columns(right),
                    "table": sql.Identifier(table),
                }
                yield "grant {right} on {schema}.{table} to {role}", names


def _execute(connection: Connection, role: str, statements: Iterable[tuple[str, dict[str, sql.Composable]]]) -> None:
    schema, database = connection.exec_driver_sql("select current_schema(), current_database()").one()
    names = {"schema": sql.Identifier(schema), "role": sql.Identifier(role), "database": sql.Identifier(database)}
    with contextlib.closing(connection.connection.cursor()) as cursor:
        for statement, more in statements:
            cursor.execute(sql.SQL(statement).format(**names, **more))


def _of_columns(right: Only) -> sql.Composed:
    return sql.SQL(f"{right.kind} ({{}})").format(sql.SQL(", ").join(map(sql.Identifier, right.columns)))
