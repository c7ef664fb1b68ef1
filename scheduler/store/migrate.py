"""Bring the schema to this version, or say what is wrong with it."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from scheduler.exceptions import SchemaError
from scheduler.store import roles

#: Serialises two migrations started at once; any number that nobody else uses for an advisory lock.
MIGRATION_LOCK = 7_223_463


def migrate(engine: Engine, *, default_pool_slots: int = 128) -> None:
    """Apply every missing migration in one transaction and make default_pool."""
    with engine.begin() as connection:
        connection.exec_driver_sql("select pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        _refuse_unknown(current(connection))
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.exec_driver_sql(
            "insert into pool (name, slots, description) values ('default_pool', %s, 'every task that names no pool')"
            " on conflict (name) do nothing",
            (default_pool_slots,),
        )
        roles.renew(connection)


def check(engine: Engine) -> None:
    """SchemaError, with the command to run, unless the schema is exactly this version's."""
    with engine.connect() as connection:
        found = current(connection)
    _refuse_unknown(found)
    if found != head():
        has = f"schema is at {found}" if found else "has no Paceline tables"
        raise SchemaError(f"The database {has}, this version needs {head()}: run `paceline db migrate`.")


def current(connection: Connection) -> str | None:
    """The revision the database is at; None without Paceline tables."""
    return MigrationContext.configure(connection, opts={"version_table": "paceline_schema"}).get_current_revision()


def head() -> str:
    """The revision this version of Paceline needs."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def _refuse_unknown(found: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaError(
            f"The database schema {found} was made by a newer Paceline: upgrade Paceline on this machine to match it."
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
