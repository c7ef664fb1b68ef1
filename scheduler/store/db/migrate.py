"""Bring the schema to this version, or say what is wrong with it; docs/explanation/migrations.md has the rules for migrations.

A migration names the oldest revision whose version of Paceline still works with what it leaves: `compatible_from`. Without it,
no older version does. The database keeps it, for processes that do not know the revision they meet.

A migration's file is called <revision>_<what>.py and names the one that it follows, which need not have the number before. The
chain is read from the text of the files: so only migrating needs Alembic, whose modules are a sixth of a worker's memory.
"""

import functools
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from tenacity import stop_after_attempt

from scheduler.exceptions import SchemaError
from scheduler.process import retries
from scheduler.store.db import roles
from scheduler.store.db.database import patiently
from scheduler.store.db.sqlstates import LOST_RACES, TOO_SLOW

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger("paceline.schema")

#: What a migration says of its place in the chain.
ASSIGNED = re.compile(r'^(revision|down_revision) = (None|"\w+")', re.MULTILINE)
#: Serializes two migrations started at once; any number that nobody else uses for an advisory lock.
MIGRATION_LOCK = 7_223_463
#: Whatever waits for a table behind a migration waits as long as the migration waits for it: not long, but again and again.
LOCK_TIMEOUT, ATTEMPTS, PAUSE_S = "3s", 10, 1.0
#: A process that gave a sign of life so many seconds ago is alive.
ALIVE_S = 30.0


def migrate(
    engine: Engine,
    *,
    default_pool_slots: int = 128,
    worker_role: roles.Wanted | None = None,
    scheduler_role: roles.Wanted | None = None,
) -> str:
    """Apply every missing migration in one transaction, make default_pool and these roles; the revision it is at now.

    Safe beside processes that the new schema still serves; SchemaError, with nothing done, if others are alive.
    """
    repeated = retries.repeated(_was_in_the_way, pause_s=PAUSE_S, stop=stop_after_attempt(ATTEMPTS))
    return repeated(_migrate, engine, default_pool_slots, worker_role, scheduler_role)


def _was_in_the_way(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "pgcode", None) in LOST_RACES | TOO_SLOW


def _migrate(engine: Engine, default_pool_slots: int, worker_role: roles.Wanted | None, scheduler_role: roles.Wanted | None) -> str:
    from alembic import command

    with engine.begin() as connection:
        patiently(connection)
        connection.exec_driver_sql("select pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        connection.exec_driver_sql("select set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
        found = current(connection)
        if found is not None and found not in known():
            _refuse_incompatible(connection, found)
            return found
        if found is not None and found != head():
            _refuse_beside_older(connection)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.exec_driver_sql(
            "insert into pool (name, slots, description) values ('default_pool', %s, 'every task that names no pool')"
            " on conflict (name) do nothing",
            (default_pool_slots,),
        )
        connection.exec_driver_sql("update paceline_schema set compatible_from = %s", (compatible_from(),))
        roles.make(connection, worker_role, scheduler_role)
        roles.renew(connection)
    return head()


def check(engine: Engine) -> None:
    """SchemaError, with the command to run, unless the schema is this version's, or a newer one that serves this version too."""
    with engine.connect() as connection:
        found = current(connection)
        if found is not None and found not in known():
            _refuse_incompatible(connection, found)
            log.info("The database schema %s is newer than this version's %s and serves it too.", found, head())
            return
    if found != head():
        has = f"schema is at {found}" if found else "has no Paceline tables"
        raise SchemaError(f"The database {has}, this version needs {head()}: run `paceline db migrate`.")


def current(connection: Connection) -> str | None:
    """The revision the database is at; None without Paceline tables."""
    if connection.exec_driver_sql("select to_regclass('paceline_schema')").scalar_one() is None:
        return None
    found: str | None = connection.exec_driver_sql("select version_num from paceline_schema").scalar()
    return found


def head() -> str:
    """The revision this version of Paceline needs."""
    return known()[0]


def compatible_from() -> str:
    """The oldest revision whose version of Paceline works with the schema of this version."""
    from alembic.script import ScriptDirectory

    newest = ScriptDirectory.from_config(_config()).get_revision(head())
    assert newest is not None
    return str(getattr(newest.module, "compatible_from", newest.revision))


def known() -> tuple[str, ...]:
    """The revisions that this version of Paceline knows, newest first."""
    return _known(_location())


@functools.cache
def _known(location: str) -> tuple[str, ...]:
    follower: dict[str | None, str] = {}
    for file in Path(location, "versions").glob("[0-9]*_*.py"):
        found = dict(ASSIGNED.findall(file.read_text(encoding="utf-8")))
        follower[found["down_revision"].strip('"') if found["down_revision"] != "None" else None] = found["revision"].strip('"')
    revisions: list[str] = []
    while (next_one := follower.get(revisions[-1] if revisions else None)) is not None:
        revisions.append(next_one)
    return tuple(reversed(revisions))


def _refuse_incompatible(connection: Connection, found: str) -> None:
    """A newer Paceline made this schema: it says which older ones it still serves."""
    serves = connection.exec_driver_sql("select to_jsonb(s)->>'compatible_from' from paceline_schema s").scalar_one()
    if serves not in known():
        raise SchemaError(
            f"The database schema {found} was made by a newer Paceline: upgrade Paceline on this machine to match it."
        )


def _refuse_beside_older(connection: Connection) -> None:
    """What runs must be able to go on with the new schema, or it has to be stopped first."""
    served = known()[: known().index(compatible_from()) + 1]
    alive = connection.exec_driver_sql(
        """
        select id from (select p.id, to_jsonb(p)->>'schema' as made_for from process p
                         where p.stopped_at is null and p.heartbeat_at > clock_timestamp() - make_interval(secs => %s)) p
         where made_for is null or made_for <> all(%s::text[]) order by id
        """,
        (ALIVE_S, list(served)),
    )
    names = list(alive.scalars())
    if names:
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise SchemaError(
            f"The schema {head()} does not serve the Paceline of {some}: stop what is older than {served[-1]}, then migrate again."
        )


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _location().replace("%", "%%"))
    return config


def _location() -> str:
    return str(Path(__file__).parent / "migrations")
