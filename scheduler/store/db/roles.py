"""The database roles of workers, waiters, schedulers and web processes, each with the rights that it needs and no others.

A worker runs the code of authors, so its role has only the rights that this code may have: it cannot delete a run, change a DAG,
a pool, a schedule or a connection, or read notices, import errors, backfills and events. Schedulers and commands read and write
every row, but own nothing, so they cannot change the schema. Only migrating needs the owner.

A web process reads almost everything, changes runs, pools, variables, connections and accounts, and adds to the audit log. It
cannot add or change a DAG, write events, register a process, or change what it has audited.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from psycopg2 import sql
from psycopg2.extensions import encrypt_password, parse_dsn
from sqlalchemy import Connection

from paceline.exceptions import NotFoundError, PacelineError
from scheduler.settings import Settings
from scheduler.store.db import rows


@dataclass(frozen=True, slots=True)
class Only:
    """A right on some columns of a table."""

    kind: str
    columns: tuple[str, ...]


#: The rights on each table.
Rights = dict[str, tuple[str | Only, ...]]
#: A statement for a role, and the names in it beside those of the role, the schema and the database.
Statement = tuple[str, dict[str, sql.Composable]]

#: The columns that a dispatch changes in its own task instance, and in those that follow.
MOVED = (
    "state", "worker", "reason", "started_at", "ended_at", "due_at", "resume", "decision", "requested_state", "try_number",
    "scheduled_at", "queued_at", "queued_by", "dispatch_id", "dispatched_at", "map_label",
)  # fmt: skip
#: The columns of a new task instance, which has no state yet.
NEW_INSTANCE = (
    "dag_run_id", "task_no", "task_id", "max_tries", "queue", "pool", "pool_slots", "priority_weight", "rank", "notify",
    "max_active_tis_per_dag", "max_active_tis_per_dagrun",
)  # fmt: skip
#: Without `db_role`, the role that registered the process.
NEW_PROCESS = ("id", "kind", "name", "host", "pid", "queues", "concurrency", "schema")
#: The two most frequent entries of the tables below.
READ: tuple[str, ...] = ("select",)
CHANGE: tuple[str, ...] = ("select", "insert", "update", "delete")
#: To serve the catalog of tables, and to publish them.
TABLES: Rights = {
    **dict.fromkeys(("iceberg_tables", "iceberg_namespace_properties", "table_try", "table_pending"), CHANGE),
    "table_publication": ("select", Only("update", ("number",))),
    "table_version": ("select", "insert"),
    "table_request": ("select", "insert"),
    "table_run": ("select", "insert", Only("update", ("publication", "started_at"))),
    "table_read": ("select", "insert"),
    "table_folder": ("select", "insert", Only("update", ("used_at",))),
    "table_pin": ("select", "insert", Only("update", ("publication", "run_publication", "pinned_at"))),
    "reproduction": READ,
}
WORKER: Rights = {
    **dict.fromkeys(
        (
            "paceline_schema",
            "dag",
            "dag_version",
            "dag_schedule",
            "connection",
            "asset",
            "asset_event",
            "dag_run_asset_event",
            "bundle_version",
            "bundle_path",
            "bundle_blob",
        ),
        READ,
    ),
    **dict.fromkeys(("xcom", "task_state", "asset_state", "deferral", "variable"), CHANGE),
    **TABLES,
    "crash_free": ("select", "insert"),
    # To create runs, as TriggerDagRunOperator does.
    "pool": READ,
    "import_error": (Only("select", ("file", "line", "message")),),
    "dag_run": ("select", "insert"),
    "task_instance": ("select", Only("insert", NEW_INSTANCE), Only("update", MOVED)),
    "deadline": ("select", "insert", Only("update", ("due_at", "missed_at"))),
    # To read when the first try of a task instance started, as sensors do.
    "task_try": ("insert", Only("select", ("task_instance_id", "try_number", "started_at"))),
    "task_progress": ("select", "insert", "update"),
    "process": ("select", Only("insert", NEW_PROCESS), Only("update", ("heartbeat_at", "stopped_at", "settings"))),
    "external_job": ("select", "insert", "update"),
    "worker_drain": ("select", Only("insert", ("process_id", "asked_by"))),
}
#: For TriggerDagRunOperator(reset_dag_run=True).
CLEAR_RUNS: Rights = {
    "dag_schedule": (Only("update", ("is_paused",)),),  # to lock it, for which PostgreSQL requires the right to update
    "dag_run": (
        Only(
            "update",
            (
                "state",
                "version_id",
                "queued_at",
                "started_at",
                "ended_at",
                "examined_at",
                "timeout_at",
                "clear_number",
                "notify",
                "requested_state",
                "results_changed_at",
                "conf",
            ),
        ),
    ),
    "task_instance": ("update", "delete"),
    "deadline": ("delete",),
    "task_try": ("select",),
    "run_version": ("insert",),
    "backfill": ("select",),
}

#: To clear, mark, trigger, delete and backfill, as the pages do. `dag_schedule` is locked before runs are counted.
WEB: Rights = {
    **dict.fromkeys(
        (
            "paceline_schema", "import_error", "process", "event", "queue_depth", "dag_source", "notice", "external_job",
            "task_progress",
        ),
        READ,
    ),
    **dict.fromkeys(
        (
            "dag_run", "task_instance", "deadline", "xcom", "task_state", "asset_state", "pool", "variable", "connection",
            "run_note", "instance_note", "idempotent_trigger", "account", "account_tag", "account_key", "login_failure", "favorite",
        ),
        CHANGE,
    ),
    "worker_drain": ("select", "insert"),
    "dag": ("select", "delete"),
    "dag_version": ("select", "delete", Only("update", ("number",))),  # to lock it
    "dag_file": ("select", Only("update", ("next_parse_at",))),
    "dag_schedule": ("select", "insert", "delete", Only("update", ("is_paused",))),
    "task_try": ("select", "insert"),
    "run_version": ("select", "insert"),
    "deferral": ("select", "delete", Only("update", ("waiter",))),  # to lock it
    "asset": ("select", "insert", Only("update", ("name",))),
    "asset_event": ("select", "insert"),
    "asset_waiting": ("select", "insert", "delete"),
    "deleted_run": ("select", "insert", "delete"),
    "backfill": ("select", "insert", "delete", Only("update", ("is_paused", "cancelled", "ended_at"))),
    "backfill_run": ("select", "insert", Only("update", ("state", "reason", "dag_run_id"))),
    # To deploy and to roll back: a scheduler parses the version, and makes it live.
    "bundle": ("select", "insert", Only("update", ("wanted_id", "version_id"))),
    "bundle_version": ("select", "insert", Only("update", ("state", "problems", "dags"))),
    "bundle_path": ("select", "insert", Only("update", ("last",))),
    "bundle_blob": ("select", "insert", Only("update", ("digest",))),  # to lock it
    "audit": ("select", "insert", Only("update", ("status",))),
    **TABLES,
    # To reproduce a run, and to store the comparison.
    "dag_run_asset_event": ("select", "insert"),
    "reproduction": ("select", "insert", Only("update", ("verdict", "compared_end"))),
}  # fmt: skip

#: The rights on everything that exists now; a migration grants those on what it adds.
SCHEDULER = (
    "revoke create on schema {schema} from public, {role}",
    "grant usage on schema {schema} to {role}",
    "grant select, insert, update, delete on all tables in schema {schema} to {role}",
    "grant execute on function {schema}.analyze_task_instance() to {role}",
    # Only a migration writes the version of the schema.
    "revoke insert, update, delete on {schema}.paceline_schema from {role}",
    "grant update (record_events) on {schema}.paceline_schema to {role}",
    "revoke insert, update, delete on {schema}.worker_role, {schema}.scheduler_role, {schema}.web_role from {role}",
)
#: The user of a role, in messages.
KINDS = {"scheduler": "schedulers", "worker": "workers", "web": "web processes"}
#: Predefined roles whose members can access rows and files without grants.
PREDEFINED = (
    "pg_read_all_data", "pg_write_all_data", "pg_maintain", "pg_read_server_files", "pg_write_server_files",
    "pg_execute_server_program", "pg_signal_backend", "pg_checkpoint", "pg_create_subscription",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Granted:
    """A role with the rights of a worker; with `may_clear_runs`, tasks can clear existing runs."""

    name: str
    may_clear_runs: bool


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """A role that a migration creates if it is missing: the user of a URL, and the password if there is one."""

    url: str
    may_clear_runs: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "RoleRequest | None":
        """The role of workers; None if it is that of schedulers or the owner. With the embedded server, tasks may clear runs."""
        if settings.worker_database_url in (settings.database_url, settings.owner_database_url):
            return None
        return cls(settings.worker_database_url, may_clear_runs=settings.database.url is None)

    @classmethod
    def of_schedulers(cls, settings: Settings) -> "RoleRequest | None":
        """The role of schedulers; None if it is the owner of the tables."""
        return None if settings.database_url == settings.owner_database_url else cls(settings.database_url)

    @classmethod
    def of_web(cls, settings: Settings) -> "RoleRequest | None":
        """The role of web processes, unless it is that of schedulers."""
        if settings.web_database_url in (settings.database_url, settings.owner_database_url):
            return None
        return cls(settings.web_database_url)


def grant_worker(connection: Connection, role: str, *, may_clear_runs: bool = False) -> None:
    """Give `role` exactly the rights of a worker, and revoke its other rights in this schema. NotFoundError."""
    _refuse_unfit(connection, role)
    _refuse_second_use(connection, role, "worker")
    connection.exec_driver_sql(
        "insert into worker_role (name, may_clear_runs) values (%s, %s)"
        " on conflict (name) do update set may_clear_runs = excluded.may_clear_runs",
        (role, may_clear_runs),
    )
    _execute(connection, role, _of_worker(Granted(role, may_clear_runs)))


def make(connection: Connection, worker: RoleRequest | None, scheduler: RoleRequest | None, web: RoleRequest | None = None) -> None:
    """Create these roles if they are missing; `renew` grants their rights. An existing role keeps its password and rights."""
    for kind, wanted, setting in (("scheduler", scheduler, "database.url"), ("web", web, "web.database_url")):
        if wanted is not None:
            role = _ensure(connection, wanted, setting)
            _refuse_second_use(connection, role, kind)
            connection.exec_driver_sql(f"insert into {kind}_role (name) values (%s) on conflict do nothing", (role,))
    if worker is not None:
        role = _ensure(connection, worker, "worker.database_url")
        _refuse_second_use(connection, role, "worker")
        connection.exec_driver_sql(
            "insert into worker_role (name, may_clear_runs) values (%s, %s)"
            " on conflict (name) do update set may_clear_runs = worker_role.may_clear_runs or excluded.may_clear_runs",
            (role, worker.may_clear_runs),
        )


def renew(connection: Connection) -> None:
    """Grant the rights that this version of Paceline needs, after a migration."""
    statements: dict[str, list[Statement]] = {
        "scheduler": [(statement, {}) for statement in SCHEDULER],
        "web": list(_exactly(WEB)),
    }
    for kind, of_kind in statements.items():
        names = connection.exec_driver_sql(
            f"select name from {kind}_role where name in (select rolname from pg_roles) order by name"
        )
        for name in names.scalars().all():
            _execute(connection, name, of_kind)
    for role in granted(connection):
        _execute(connection, role.name, _of_worker(role))


def granted(connection: Connection) -> list[Granted]:
    """The roles with the rights of a worker."""
    roles = connection.exec_driver_sql(
        "select name, may_clear_runs from worker_role where name in (select rolname from pg_roles) order by name"
    )
    return rows.of_result(Granted, roles)


def excesses(connection: Connection) -> list[tuple[str, str, str]]:
    """Excess rights of worker roles that only the owner of the database can revoke: role, right, statement."""
    excesses = connection.exec_driver_sql(
        """
        select w.name, 'create temporary tables', format('revoke temporary on database %%I from public', current_database())
          from worker_role w join pg_roles r on r.rolname = w.name
         where has_database_privilege(w.name, current_database(), 'temporary')
        union all
        select w.name, 'create tables and functions in the schema ' || current_schema(),
               format('revoke create on schema %%I from public', current_schema())
          from worker_role w join pg_roles r on r.rolname = w.name
         where has_schema_privilege(w.name, current_schema(), 'create')
         order by 1, 2
        """
    )
    return [(role, right, statement) for role, right, statement in excesses]


def _ensure(connection: Connection, wanted: RoleRequest, setting: str) -> str:
    parts = parse_dsn(wanted.url)
    role = parts.get("user")
    if role is None:
        raise PacelineError(f"{setting} has no user: write postgresql://user:password@host:port/name.")
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
            f"There is no database role {role!r}, and {me!r} may not create it: run `create role ... login password ...`."
        )
    statement = sql.SQL("create role {} login").format(sql.Identifier(role))
    with contextlib.closing(connection.connection.cursor()) as cursor:
        if password is not None:
            # Encrypted here, because the server may log statements.
            unreadable = encrypt_password(password, role, connection.connection.driver_connection)
            statement += sql.SQL(" password {}").format(sql.Literal(unreadable))
        cursor.execute(statement)


def _refuse_unfit(connection: Connection, role: str) -> None:
    """NotFoundError, or PacelineError for a role with rights that grants cannot limit."""
    rights = connection.exec_driver_sql(
        """
        select r.rolsuper or pg_has_role(r.rolname, c.relowner, 'member') as owns,
               r.rolcreaterole or r.rolreplication or r.rolbypassrls as privileged,
               (select min(p.rolname) from pg_roles p
                 where p.rolname = any(%s) and pg_has_role(r.rolname, p.oid, 'member')) as member
          from pg_roles r, pg_class c where r.rolname = %s and c.oid = 'dag_run'::regclass
        """,
        (list(PREDEFINED), role),
    ).first()
    if rights is None:
        raise NotFoundError(f"There is no database role {role!r}: create it with `create role ... login password ...`.")
    if rights.owns:
        raise PacelineError(f"Role {role!r} is a superuser or owns the tables, so it can do everything: use another role.")
    if rights.privileged:
        raise PacelineError(f"Role {role!r} has createrole, replication or bypassrls, so grants do not limit it: use another role.")
    if rights.member is not None:
        raise PacelineError(f"Role {role!r} is a member of {rights.member}, which grants do not limit: use another role.")


def _refuse_second_use(connection: Connection, role: str, kind: str) -> None:
    used = connection.exec_driver_sql(
        "select kind from (select name, 'worker' as kind from worker_role union all select name, 'scheduler' from scheduler_role"
        " union all select name, 'web' from web_role) r where name = %s and kind <> %s",
        (role, kind),
    ).first()
    if used is not None:
        both = " and ".join(sorted(KINDS[one] for one in (kind, used.kind)))
        raise PacelineError(f"Role {role!r} is used by both {both}: use a separate role for each.")


def _of_worker(role: Granted) -> Iterator[Statement]:
    return _exactly(WORKER, *([CLEAR_RUNS] if role.may_clear_runs else []))


def _exactly(*rights: Rights) -> Iterator[Statement]:
    # A role that can create tables, types or functions in the search path could shadow ours. Before PostgreSQL 15 every role
    # can do that in the schema public, and in all versions every role can create temporary ones.
    yield "revoke create on schema {schema} from public, {role}", {}
    yield "revoke create, temporary on database {database} from public, {role}", {}
    yield "revoke all on all tables in schema {schema} from {role}", {}
    yield "revoke all on all sequences in schema {schema} from {role}", {}
    yield "revoke all on all functions in schema {schema} from {role}", {}
    yield "grant usage on schema {schema} to {role}", {}
    for part in rights:
        for table, kinds in part.items():
            for right in kinds:
                names: dict[str, sql.Composable] = {
                    "right": sql.SQL(right) if isinstance(right, str) else _of_columns(right),
                    "table": sql.Identifier(table),
                }
                yield "grant {right} on {schema}.{table} to {role}", names


def _execute(connection: Connection, role: str, statements: Iterable[Statement]) -> None:
    schema, database = connection.exec_driver_sql("select current_schema(), current_database()").one()
    names = {"schema": sql.Identifier(schema), "role": sql.Identifier(role), "database": sql.Identifier(database)}
    with contextlib.closing(connection.connection.cursor()) as cursor:
        for statement, more in statements:
            cursor.execute(sql.SQL(statement).format(**names, **more))


def _of_columns(right: Only) -> sql.Composed:
    return sql.SQL(f"{right.kind} ({{}})").format(sql.SQL(", ").join(map(sql.Identifier, right.columns)))
