"""Migrates the schema to this version, or checks it; docs/explanation/migrations.md has the rules for migrations.

The `compatible_from` of a migration is the oldest revision whose version of Paceline works with the new schema. Without it, no
older version does. It is stored in the database, for processes of versions without the revision.

The file of a migration is called <revision>_<what>.py, and has the revision that it follows, which need not be the number
before. The chain is read from the text of the files, so that only migrating needs Alembic, which is a sixth of a worker's memory.

A migration lists the indexes that it adds to existing tables as `indexes`: {name: what follows ON}. They are built beside work:
CREATE INDEX CONCURRENTLY blocks no write, and cannot be part of a transaction. No code may need one to be correct, because
processes run before it is complete.
"""

import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from tenacity import stop_after_attempt

from paceline.exceptions import SchemaError
from scheduler.process import retries
from scheduler.settings import Settings
from scheduler.store.db import database, roles
from scheduler.store.db.clock import ALIVE
from scheduler.store.db.database import patiently
from scheduler.store.db.sqlstates import LOST_RACES, TOO_SLOW

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger("paceline.schema")

T = TypeVar("T")

FOLDER = Path(__file__).parent / "migrations"
#: The assignments in a migration that define its place in the chain; the first one follows none, which becomes "".
ASSIGNED = re.compile(r'^(revision|down_revision) = (?:None|"(\w+)")', re.MULTILINE)
#: The advisory lock that serializes migrations; any number without another use.
MIGRATION_LOCK = 7_223_463
#: Statements queue behind a migration that waits for a table lock. So it waits only briefly, and tries again for a minute.
LOCK_TIMEOUT, ATTEMPTS, PAUSE_S = "150ms", 60, 1.0
#: A process with a heartbeat within this many seconds is alive.
ALIVE_S = 30.0
#: The advisory lock of the process that builds; any number without another use. No process waits for it: a waiting one would have a
#: snapshot, for whose end CREATE INDEX CONCURRENTLY waits.
BUILD_LOCK = 7_223_464
#: Whether each index is valid; one whose build was interrupted is not.
VALID = """
select c.relname, i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid
 where c.relnamespace = current_schema()::regnamespace and c.relname = any(%s)
"""


def migrate(
    engine: Engine,
    *,
    default_pool_slots: int = 128,
    worker_role: roles.RoleRequest | None = None,
    scheduler_role: roles.RoleRequest | None = None,
    web_role: roles.RoleRequest | None = None,
) -> str:
    """Apply every missing migration, and create default_pool and these roles. Returns the new revision.

    A new database is made in one transaction. Otherwise each migration has its own: with the exclusive lock of one table, waiting
    for another one would be a deadlock with nearly any statement that runs. Then it builds missing indexes beside all work.
    Processes that work with the new schema can keep running; SchemaError, without any change, if others are alive.
    """
    ended = False
    while not ended:
        revision, ended = _repeated(_migrate, engine, default_pool_slots, worker_role, scheduler_role, web_role)
    if revision == head():
        build_indexes(engine, _indexes())
    return revision


def migrate_as_set(engine: Engine, settings: Settings) -> str:
    """`migrate` with the default pool and the roles of the settings."""
    return migrate(
        engine,
        default_pool_slots=settings.core.default_pool_task_slot_count,
        worker_role=roles.RoleRequest.of(settings),
        scheduler_role=roles.RoleRequest.of_schedulers(settings),
        web_role=roles.RoleRequest.of_web(settings),
    )


def downgrade(engine: Engine) -> str:
    """Undo the newest migration in one transaction, with the data that only it stores. Returns the new revision.

    SchemaError, without any change, if processes of this version are alive, if the schema is not that of this version, or if the
    migration cannot be undone.
    """
    return _repeated(_downgrade, engine)


def _repeated(change: Callable[..., T], engine: Engine, *arguments: Any) -> T:
    """Call it until no other statement is in its way, for a minute; then SchemaError."""
    repeated = retries.repeated(_was_in_the_way, pause_s=PAUSE_S, stop=stop_after_attempt(ATTEMPTS))
    try:
        changed: T = repeated(change, engine, *arguments)
    except DBAPIError as error:
        if not _was_in_the_way(error):
            raise
        with engine.connect() as connection:
            revision = current(connection)
        raise SchemaError(
            f"The schema stays at {revision}: for a minute, other statements had locked the tables to change. Run this again when"
            " fewer tasks run."
        ) from None
    return changed


def _was_in_the_way(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "pgcode", None) in LOST_RACES | TOO_SLOW


def _migrate(engine: Engine, default_pool_slots: int, *wanted: roles.RoleRequest | None) -> tuple[str, bool]:
    """Apply the next migration, or all to a new database. Returns the revision, and whether none is missing."""
    from alembic import command

    with engine.begin() as connection:
        _lock(connection)
        revision = current(connection)
        if revision is not None and revision not in known():
            _refuse_incompatible(connection, revision)
            return revision, True
        if revision is not None and revision != head():
            _refuse_beside_older(connection)
        target = head() if revision in (None, head()) else known()[known().index(revision) - 1]
        command.upgrade(_config(connection), target)
        connection.exec_driver_sql("update paceline_schema set compatible_from = %s", (compatible_from(target),))
        if target != head():
            return target, False
        if revision is None:
            create_indexes(connection, _indexes())
        connection.exec_driver_sql(
            "insert into pool (name, slots, description) values ('default_pool', %s, 'every task that names no pool')"
            " on conflict (name) do nothing",
            (default_pool_slots,),
        )
        roles.make(connection, *wanted)
        roles.renew(connection)
    return head(), True


def _downgrade(engine: Engine) -> str:
    from alembic import command

    newest, *older = known()
    with engine.begin() as connection:
        _lock(connection)
        revision = current(connection)
        if revision == newest and not older:
            raise SchemaError(f"The schema {newest} is the first: there is no migration to undo.")
        if revision != newest:
            raise SchemaError(f"The schema is at {revision}, and this version undoes only {newest}: nothing is changed.")
        if names := _alive_except(connection, older):
            raise SchemaError(
                f"{names} need the schema {newest}: replace them by processes of the version before, then downgrade again."
            )
        try:
            command.downgrade(_config(connection), older[0])
        except NotImplementedError as error:
            raise SchemaError(f"The migration {newest} cannot be undone. {error}") from None
        connection.exec_driver_sql("update paceline_schema set compatible_from = %s", (compatible_from(older[0]),))
    return older[0]


def _lock(connection: Connection) -> None:
    """Wait until no other process migrates, and for no table for long."""
    patiently(connection)
    connection.exec_driver_sql("select pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
    connection.exec_driver_sql("select set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))


def wait(engine: Engine, say: Callable[[str], None]) -> None:
    """At the start of a process: wait until the database answers, then check its schema. CredentialsError ends the wait."""
    database.wait(engine, say)
    check(engine)


def check(engine: Engine) -> None:
    """SchemaError, with the command to run, unless the schema fits this version or is a compatible newer one."""
    with engine.connect() as connection:
        revision = current(connection)
        if revision is not None and revision not in known():
            _refuse_incompatible(connection, revision)
            log.info("The database schema %s is newer than %s of this version, and compatible with it.", revision, head())
            return
    if revision != head():
        has = f"schema is at {revision}" if revision else "has no Paceline tables"
        raise SchemaError(f"The database {has}, this version needs {head()}:", fix="run `paceline db migrate`.")


def current(connection: Connection) -> str | None:
    """The revision of the database; None without Paceline tables. SchemaError for one that an earlier checkout made.

    The schemas before the baseline have the same numbers as the migrations since, but no column `baseline`.
    """
    if connection.exec_driver_sql("select to_regclass('paceline_schema')").scalar_one() is None:
        return None
    marker = connection.exec_driver_sql(
        "select version_num as revision, to_jsonb(s)->>'baseline' as baseline from paceline_schema s"
    ).first()
    if marker is not None and marker.baseline is None:
        raise SchemaError(
            f"The database has the schema {marker.revision} of a Paceline before 0.2.0, which cannot be upgraded:",
            fix="back up what you need with that version, then run `paceline db migrate` on an empty database (for the embedded"
            " PostgreSQL: remove the folder PACELINE_HOME, or set PACELINE_HOME to another one).",
        )
    return marker.revision if marker is not None else None


def head() -> str:
    """The revision that this version of Paceline needs."""
    return known()[0]


def compatible_from(revision: str | None = None) -> str:
    """The oldest revision whose version of Paceline works with the schema of this version, or with that of `revision`."""
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(_config()).get_revision(revision or head())
    assert script is not None
    return str(getattr(script.module, "compatible_from", script.revision))


def _indexes() -> dict[str, str]:
    """The indexes of all migrations that are built beside work."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return {name: text for script in scripts for name, text in getattr(script.module, "indexes", {}).items()}


def known() -> tuple[str, ...]:
    """The revisions of this version of Paceline, newest first."""
    return _known(FOLDER)


@functools.cache
def _known(folder: Path) -> tuple[str, ...]:
    follower: dict[str, str] = {}
    for file in (folder / "versions").glob("[0-9]*_*.py"):
        assigned = dict(ASSIGNED.findall(file.read_text(encoding="utf-8")))
        other = follower.setdefault(assigned["down_revision"], assigned["revision"])
        assert other == assigned["revision"], (
            f"{other} and {assigned['revision']} follow the same migration: put one behind the other"
        )
    revisions: list[str] = []
    while (following := follower.get(revisions[-1] if revisions else "")) is not None:
        revisions.append(following)
    return tuple(reversed(revisions))


def _refuse_incompatible(connection: Connection, revision: str) -> None:
    """SchemaError if this schema, made by a newer version, is not compatible with this version."""
    serves = connection.exec_driver_sql("select to_jsonb(s)->>'compatible_from' from paceline_schema s").scalar_one()
    if serves not in known():
        raise SchemaError(
            f"The database schema {revision} was made by a newer Paceline:", fix="upgrade Paceline on this machine to match it."
        )


def _refuse_beside_older(connection: Connection) -> None:
    """SchemaError if running processes cannot work with the new schema: they must be stopped first."""
    served = known()[: known().index(compatible_from()) + 1]
    if names := _alive_except(connection, served):
        raise SchemaError(
            f"The schema {head()} does not work with the older version of {names}: stop processes older than {served[-1]}, then"
            " migrate again."
        )


def _alive_except(connection: Connection, served: Sequence[str]) -> str:
    """Some of the running processes whose version was made for none of these revisions; empty if there is none."""
    alive = connection.exec_driver_sql(
        f"""
        select id from (select p.id, to_jsonb(p)->>'schema' as made_for from process p
                         where {ALIVE}) p
         where made_for is null or made_for <> all(%(served)s::text[]) order by id
        """,
        {"silent": ALIVE_S, "served": list(served)},
    )
    names = list(alive.scalars())
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _config(connection: Connection | None = None) -> "Config":
    from alembic.config import Config

    config = Config()
    config.attributes["connection"] = connection
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return config


def create_indexes(connection: Connection, indexes: Mapping[str, str]) -> None:
    """Create all in this transaction, for a new database."""
    for name, definition in indexes.items():
        connection.exec_driver_sql(f"create index {name} on {definition}")


def build_indexes(engine: Engine, indexes: Mapping[str, str]) -> None:
    """Build the indexes that are missing or were interrupted. If another process builds now, it is left to that one."""
    with engine.connect() as connection:
        is_valid = {row.relname: row.indisvalid for row in connection.exec_driver_sql(VALID, (list(indexes),))}
    missing = [name for name in indexes if not is_valid.get(name)]
    if not missing:
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not connection.exec_driver_sql("select pg_try_advisory_lock(%s)", (BUILD_LOCK,)).scalar_one():
            log.info("Another process builds the indexes %s.", ", ".join(missing))
            return
        try:
            connection.exec_driver_sql("set statement_timeout = 0")
            for name in missing:
                if name in is_valid:
                    connection.exec_driver_sql(f"drop index concurrently if exists {name}")
                connection.exec_driver_sql(f"create index concurrently if not exists {name} on {indexes[name]}")
        finally:
            connection.invalidate()  # ends the session, and with it the lock and the setting
