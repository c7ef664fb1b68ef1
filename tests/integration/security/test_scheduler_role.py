"""Schedulers and commands with a role that owns nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from support.servers import PostgresServer
from support.waiting import eventually

from paceline.exceptions import PacelineError
from scheduler.cli import paceline
from scheduler.settings import Settings
from scheduler.store.db import database, migrate, roles
from scheduler.store.db.database import transact

from .conftest import ROLE, allowed, as_role

SCHEDULER = "scheduler_of_a_test"
DAG = """
from paceline import DAG, task

with DAG("d", schedule=None):
    @task
    def numbers():
        return [1, 2]

    @task
    def double(n):
        return 2 * n

    double.expand(n=numbers())
"""
FORBIDDEN = [
    "truncate dag_run cascade", "alter table dag_run add column x int", "drop table xcom", "drop function log_run cascade",
    "create table mine (x int)", "create schema mine", "create function public.mine() returns int language sql as 'select 1'",
    "alter table task_instance disable trigger all", "alter function log_run() security invoker",
    f"grant {SCHEDULER} to pg_monitor", "alter table xcom owner to current_user", "create trigger t after insert on xcom"
    " for each row execute function note_run()", "create index on xcom (key)", "alter default privileges for role postgres grant"
    " all on tables to public",
    "update paceline_schema set version_num = '0'", "update paceline_schema set compatible_from = '0'",
    "insert into worker_role (name) values ('x')", "delete from scheduler_role",
    "create role mine", "alter role current_user superuser", "set role postgres", "select * from pg_authid",
    "copy dag_run to program 'id'", "select pg_read_file('/etc/passwd')", "alter system set log_statement = 'all'",
]  # fmt: skip


@pytest.fixture
def scheduler_url(postgres_server: PostgresServer, settings: Settings) -> Iterator[str]:
    """The URL of the database as a role that migrating makes; it is gone after the test."""
    yield settings.database_url.replace("postgres@", f"{SCHEDULER}:secret@")
    engine = database.create(settings, pool_size=1)
    with engine.begin() as connection:
        if connection.exec_driver_sql("select from pg_roles where rolname = %s", (SCHEDULER,)).first() is not None:
            connection.exec_driver_sql(f"drop owned by {SCHEDULER}")
    engine.dispose()
    postgres_server.execute(f"drop role if exists {SCHEDULER}")


@pytest.mark.long
def test_a_whole_stack_works_when_nothing_that_runs_owns_the_tables(
    role: str, scheduler_url: str, settings: Settings, engine: Any, stack_factory: Any
) -> None:
    environment = {
        "PACELINE_HOME": str(settings.home), "PACELINE_DATABASE_OWNER_URL": settings.database_url,
        "PACELINE_DATABASE_URL": scheduler_url, "PACELINE_WORKER_DATABASE_URL": role,
    }  # fmt: skip
    done = CliRunner().invoke(paceline, ["db", "migrate"], env=environment)
    assert done.exit_code == 0, done.output
    stack = stack_factory(
        {"d.py": DAG}, schedulers=1, workers=[("default", 2)], waiters=1,
        env={"PACELINE_DATABASE_URL": scheduler_url, "PACELINE_WORKER_DATABASE_URL": role},
    )  # fmt: skip
    eventually(lambda: len(stack.json("dags", "list")) == 1, timeout=60, message=stack.logs)

    run = stack.json("dags", "trigger", "d", "--run-id", "r", "--wait", "--timeout", "60")
    stack.cli("pools", "set", "p", "3")
    stack.cli("variables", "set", "k", "v")
    stack.cli("dags", "pause", "d")
    stack.cli("runs", "clear", "d", "r", "--yes")
    stack.cli("runs", "delete", "d", "r", "--yes")
    stack.cli("db", "clean", "--before", "2001-01-01", "--yes")

    assert run["state"] == "success", stack.logs()
    with engine.connect() as connection:
        who = connection.exec_driver_sql(
            "select application_name, usename from pg_stat_activity where datname = current_database()"
            " and application_name in ('paceline scheduler', 'paceline worker')"
        )
        assert set(map(tuple, who)) == {("paceline scheduler", SCHEDULER), ("paceline worker", ROLE)}
    assert "permission denied" not in stack.logs()


def test_it_may_change_every_row_and_nothing_of_the_schema(scheduler_url: str, settings: Settings, engine: Any) -> None:
    migrate.migrate(engine, scheduler_role=roles.RoleRequest(scheduler_url))
    # PostgreSQL only warns of a grant that grants nothing.
    rights = "select relname, relacl::text from pg_class where relnamespace = 'public'::regnamespace order by 1"
    with engine.connect() as connection:
        granted = connection.exec_driver_sql(rights).all()
    with as_role(scheduler_url) as connection, connection.cursor() as cursor:
        cursor.execute("grant all on dag_run, xcom to public")
        assert allowed(cursor, FORBIDDEN) == []
        cursor.execute("select analyze_task_instance()")
        cursor.execute("select set_config('paceline.actor', 'cli:ada', false)")
        cursor.execute("update paceline_schema set record_events = true")
    with engine.connect() as connection:
        assert connection.exec_driver_sql(rights).all() == granted


def test_one_role_does_not_serve_schedulers_and_workers(role: str, engine: Any) -> None:
    transact(engine, roles.grant_worker, ROLE)
    with pytest.raises(PacelineError, match="use a separate role for each"):
        migrate.migrate(engine, scheduler_role=roles.RoleRequest(role))


def test_doctor_names_the_rights_that_only_the_owner_of_the_database_can_revoke(
    role: str, engine: Any, settings: Settings, postgres_server: PostgresServer
) -> None:
    transact(engine, roles.grant_worker, ROLE)
    assert transact(engine, roles.excesses) == []
    with engine.connect() as connection:
        name = connection.exec_driver_sql("select current_database()").scalar_one()
    postgres_server.execute(f"grant temporary on database {name} to public")

    found = CliRunner().invoke(
        paceline, ["doctor"], env={"PACELINE_HOME": str(settings.home), "PACELINE_DATABASE_URL": settings.database_url}
    )

    assert found.exit_code == 1
    assert f"Role '{ROLE}' may create temporary tables, which a worker's role must not." in found.output
    assert f"revoke temporary on database {name} from public" in found.output
