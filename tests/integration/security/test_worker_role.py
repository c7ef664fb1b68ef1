"""Workers and waiters with a database role that has only the rights that they need."""

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from support.run_actions import running
from support.scenario import Scenario, chain
from support.servers import PostgresServer
from support.waiting import eventually

from paceline.exceptions import NotFoundError, PacelineError
from scheduler.cli import paceline
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db import database, migrate, roles
from scheduler.store.db.database import transact
from scheduler.store.runs.runs import CreatedRun
from scheduler.store.worker.hot_path import HotPath
from workers.task import triggered_runs

from .conftest import ROLE, allowed, as_role

DAG = """
import os, signal
from datetime import datetime, timedelta, timezone
from paceline import DAG, Asset, Variable, task, chain
from paceline.operators import BranchPythonOperator, EmptyOperator, PythonOperator, TriggerDagRunOperator
from paceline.sensors import DateTimeSensor, PythonSensor
from paceline.operators import BashOperator

def told(context):
    print("told")

with DAG("other", schedule=None, max_active_tasks=100):
    BashOperator(task_id="done", bash_command="true")

with DAG("d", schedule=None, on_failure_callback=told, max_active_tasks=100):
    @task
    def numbers(ti=None):
        Variable.set("seen", "yes")
        Variable.set("gone", "x")
        Variable.delete("gone")
        ti.xcom_push("more", {"a": 1})
        return [1, 2, 3]

    @task(map_index_template="{{ ti.map_index }}")
    def double(n):
        return 2 * n

    @task
    def total(values, ti=None):
        assert Variable.get("seen") == "yes"
        assert ti.xcom_pull("numbers", key="more") == {"a": 1}
        return sum(values)

    @task(retries=1, retry_delay=timedelta(0), on_retry_callback=told)
    def second_time(ti=None):
        if ti.try_number == 1:
            raise ValueError("not yet")

    @task(retries=1, retry_delay=timedelta(0), on_failure_callback=told)
    def dies_once(ti=None):
        if ti.try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @task(outlets=[Asset("s3://made")])
    def makes(outlet_events=None):
        outlet_events[Asset("s3://made")].extra = {"rows": 1}

    @task(inlets=[Asset("s3://made")])
    def reads(inlet_events=None):
        return len(list(inlet_events[Asset("s3://made")]))

    def pokes(ti=None):
        return ti.resume is not None

    total(double.expand(n=numbers()))
    second_time()
    dies_once()
    makes() >> reads()
    DateTimeSensor(task_id="deferred", target_time=datetime.now(timezone.utc) + timedelta(seconds=1), deferrable=True)
    PythonSensor(task_id="pokes", python_callable=pokes, mode="reschedule", poke_interval=0.2)
    choose = BranchPythonOperator(task_id="choose", python_callable=lambda: "left")
    choose >> [EmptyOperator(task_id="left"), EmptyOperator(task_id="right")]
    TriggerDagRunOperator(task_id="trigger", trigger_dag_id="other", trigger_run_id="made")
"""


@pytest.mark.long
def test_a_whole_stack_works_with_it(role: str, engine: Any, stack_factory: Any) -> None:
    transact(engine, roles.grant_worker, ROLE)
    stack = stack_factory(
        {"d.py": DAG}, schedulers=1, workers=[("default", 3)], waiters=1, env={"PACELINE_WORKER_DATABASE_URL": role}
    )
    eventually(lambda: len(stack.json("dags", "list")) == 2, timeout=60, message=stack.logs)

    run = stack.json("dags", "trigger", "d", "--run-id", "r", "--wait", "--timeout", "90")

    states = {(task["task_id"], task["map_index"]): task["state"] for task in run["tasks"]}
    assert states.pop(("right", -1)) == "skipped"
    assert set(states.values()) == {"success"}, (states, stack.logs())
    with engine.connect() as connection:
        who = set(
            connection.exec_driver_sql(
                "select usename from pg_stat_activity where application_name = 'paceline worker' and datname = current_database()"
            ).scalars()
        )
        notices = set(connection.exec_driver_sql("select kind from notice").scalars())
        events = connection.exec_driver_sql("select count(*) from event where actor like 'worker-1%%'").scalar_one()
        total = connection.exec_driver_sql(
            "select x.value from xcom x join task_instance t on t.id = x.task_instance_id"
            " where t.task_id in ('total', 'reads') and key = 'return_value' order by t.task_id"
        ).scalars().all()  # fmt: skip
    assert who == {ROLE}
    assert {"on_retry", "asset"} <= notices
    assert events > 10
    assert total[1] == 12
    assert "permission denied" not in stack.logs()


def test_clearing_a_run_of_another_dag_is_a_right_of_its_own(role: str, engine: Any, settings: Settings) -> None:
    scenario = Scenario(settings)
    run = scenario.triggered(chain("other", 2, task={"sla_s": 60.0}), run_id="made")
    _finish(scenario, run)
    scenario.triggered(chain("d", 1), run_id="r")
    again = running(scenario)
    worker = settings.model_copy(update={"worker": settings.worker.model_copy(update={"database_url": role})}).as_worker()

    def reset(run_id: str = "made") -> str:
        return triggered_runs.trigger(
            worker,
            "other",
            run_id=run_id,
            logical_date=None,
            conf={},
            reset=True,
            claim=again,
            hot=hot,
            versions=Versions(),
            created=created.append,
            patient=lambda ask: ask(),
        )

    created: list[CreatedRun] = []
    hot = HotPath(worker, scenario.worker_id)
    transact(engine, roles.grant_worker, ROLE)
    assert reset("new") == "new", "to create a run needs no further right"
    assert [run.tokens for run in created] == [[f"run:{created[0].id}"]], "without the right to lock a DAG, a scheduler starts it"
    with pytest.raises(
        PacelineError, match=r"may not do that \(permission denied .*db grant-worker ROLE --may-clear-runs` grants it"
    ):
        reset()
    transact(engine, roles.grant_worker, ROLE, may_clear_runs=True)

    assert reset() == "made"
    assert scenario.rows("select state, clear_number from dag_run where id = %s", run) == [("queued", 1)]
    assert set(scenario.states(run).values()) == {"none"}
    hot.close()
    scenario.close()


def _finish(scenario: Scenario, run: int) -> None:
    def ended() -> bool:
        scenario.turn()
        scenario.work()
        return scenario.run_state(run) == "success"

    eventually(ended, timeout=20)


FORBIDDEN = [
    "delete from dag_run", "delete from task_instance", "delete from dag_version", "delete from dag", "delete from process",
    "delete from event", "truncate dag_run cascade", "truncate xcom",
    "update dag_version set data = '{}'", "update dag set is_active = false", "update dag_run set state = 'failed'",
    "update dag_schedule set is_paused = true", "update pool set slots = 0", "update connection set host = 'x'",
    "update task_instance set dag_run_id = 1", "update task_instance set pool = 'x'", "update task_instance set task_id = 'x'",
    "update task_instance set notify = null", "update task_instance set priority_weight = 1, rank = 1",
    "update task_instance set max_tries = 9", "update paceline_schema set version_num = '0'",
    "insert into notice (kind, dag_run_id) values ('x', 1)", "insert into event (dag_run_id, actor) values (1, 'x')",
    "insert into dag_version (dag_id, number, content_hash, data) values ('x', 1, 'x', '{}')", "insert into pool values ('x', 1)",
    "insert into connection (conn_id, conn_type) values ('x', 'x')", "insert into worker_role (name) values ('x')",
    "select * from notice", "select * from event", "select * from import_error", "select * from backfill", "select * from dag_file",
    "select * from task_try", "select * from worker_role", "select * from asset_waiting",
    "select * from pg_authid", "create table mine (x int)", "create function mine() returns int language sql as 'select 1'",
    "create schema mine", "alter table dag_run add column x int", "drop table dag_run", "drop function log_run cascade",
    "alter function log_run() security invoker", "create role mine", "alter role current_user superuser", "set role postgres",
    "copy dag_run to program 'id'", "copy dag_run to '/tmp/x'", "select pg_read_file('/etc/passwd')",
    "select pg_terminate_backend(pid) from pg_stat_activity where usename <> current_user",
    "select lo_import('/etc/passwd')", "alter system set log_statement = 'all'",
]  # fmt: skip


def test_the_role_has_no_rights_that_it_does_not_need(role: str, engine: Any) -> None:
    transact(engine, roles.grant_worker, ROLE)
    with as_role(role) as connection, connection.cursor() as cursor:
        assert allowed(cursor, FORBIDDEN) == []
        cursor.execute("select count(*) from dag_version")


def test_it_has_exactly_the_rights_that_stand_in_the_table(role: str, engine: Any) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql('grant all on all tables in schema public to "' + ROLE.replace('"', '""') + '"')
    transact(engine, roles.grant_worker, ROLE)

    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            """
            select t.tablename, p.kind
              from pg_tables t
             cross join unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) p (kind)
             where t.schemaname = 'public' and has_table_privilege(%s, format('public.%%I', t.tablename), p.kind)
            """,
            (ROLE,),
        ).all()
    wanted = {(table, kind) for table, kinds in roles.WORKER.items() for kind in kinds if isinstance(kind, str)}
    assert set(map(tuple, rows)) == wanted


def test_it_reaches_no_column_function_sequence_schema_and_database_beside_them(role: str, engine: Any) -> None:
    transact(engine, roles.grant_worker, ROLE)
    columns = {
        (table, one.kind, column)
        for table, kinds in roles.WORKER.items() for one in kinds if isinstance(one, roles.Only) for column in one.columns
    }  # fmt: skip
    with engine.connect() as connection:
        found = connection.exec_driver_sql(
            "select table_name, lower(privilege_type), column_name from information_schema.column_privileges c"
            " where grantee = %s and not has_table_privilege(grantee, format('%%I.%%I', table_schema, table_name), privilege_type)",
            (ROLE,),
        ).all()
        elsewhere = connection.exec_driver_sql(
            """
            select 'function', p.oid::regprocedure::text from pg_proc p
             where p.pronamespace = 'public'::regnamespace and has_function_privilege(%(role)s, p.oid, 'execute')
            union all
            select 'sequence', c.oid::regclass::text from pg_class c
             where case when c.relkind = 'S' then has_sequence_privilege(%(role)s, c.oid, 'usage, select, update') end
            union all
            select 'create in ' || n.nspname, '' from pg_namespace n where has_schema_privilege(%(role)s, n.oid, 'create')
            union all
            select p, '' from unnest(array['create', 'temporary']) p
             where has_database_privilege(%(role)s, current_database(), p)
            union all
            select 'owns', c.oid::regclass::text from pg_class c where pg_get_userbyid(c.relowner) = %(role)s
            union all
            select 'parameter', s.name from pg_settings s
             where s.context in ('superuser', 'superuser-backend')
               and has_parameter_privilege(%(role)s, s.name, 'set, alter system')
            """,
            {"role": ROLE},
        ).all()
    assert set(map(tuple, found)) == columns
    assert elsewhere == []


def test_a_migration_grants_again(role: str, engine: Any) -> None:
    transact(engine, roles.grant_worker, ROLE, may_clear_runs=True)
    with engine.begin() as connection:
        connection.exec_driver_sql('revoke all on all tables in schema public from "' + ROLE.replace('"', '""') + '"')

    migrate.migrate(engine)

    assert transact(engine, roles.granted) == [roles.Granted(ROLE, True)]
    with as_role(role) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from dag_run")


@pytest.fixture
def missing_role(postgres_server: PostgresServer, settings: Settings, engine: Any) -> Iterator[str]:
    """The URL of the database as a role that does not exist; it is gone after the test."""
    name = "made_by_migrating"
    yield settings.database_url.replace("postgres@", f"{name}:s%20e'c@")
    with engine.begin() as connection:
        if connection.exec_driver_sql("select from pg_roles where rolname = %s", (name,)).first() is not None:
            connection.exec_driver_sql(f"drop owned by {name}")
    postgres_server.execute(f"drop role if exists {name}")


def test_migrating_makes_the_role_of_the_url_with_its_password(
    missing_role: str, engine: Any, cli_environment: dict[str, str]
) -> None:
    environment = cli_environment | {"PACELINE_WORKER_DATABASE_URL": missing_role}

    first = CliRunner().invoke(paceline, ["db", "migrate"], env=environment)

    assert first.exit_code == 0, first.output
    assert transact(engine, roles.granted) == [roles.Granted("made_by_migrating", False)]
    with engine.connect() as connection:
        query = "select rolpassword, rolcanlogin, rolsuper from pg_authid where rolname = 'made_by_migrating'"
        stored = connection.exec_driver_sql(query).one()
    # The server stores a SCRAM verifier unchanged: the password itself was never sent.
    assert stored[0].startswith("SCRAM-SHA-256$")
    assert tuple(stored[1:]) == (True, False)
    with as_role(missing_role) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from dag_run")

    transact(engine, roles.grant_worker, "made_by_migrating", may_clear_runs=True)
    again = CliRunner().invoke(
        paceline, ["db", "migrate"], env=environment | {"PACELINE_WORKER_DATABASE_URL": missing_role.replace("s%20e'c", "other")}
    )

    assert again.exit_code == 0, again.output
    assert transact(engine, roles.granted) == [roles.Granted("made_by_migrating", True)], "what it was granted it keeps"
    with engine.connect() as connection:
        assert connection.exec_driver_sql(query).one() == stored, "and its password"


def test_without_the_right_to_create_roles_the_error_names_the_role_to_create(
    role: str, missing_role: str, settings: Settings, engine: Any
) -> None:
    transact(engine, roles.grant_worker, ROLE)
    without_right = database.create(settings.model_copy(update={"database": settings.database.model_copy(update={"url": role})}))

    with without_right.begin() as connection, pytest.raises(PacelineError, match=r"may not create it: run `create role"):
        roles.make(connection, roles.RoleRequest(missing_role), None)
    without_right.dispose()


def test_a_url_without_a_user_and_a_url_of_the_owner_name_no_role(settings: Settings, engine: Any) -> None:
    with pytest.raises(PacelineError, match="has no user"):
        migrate.migrate(engine, worker_role=roles.RoleRequest(settings.database_url.replace("postgres@", "")))
    with pytest.raises(PacelineError, match="superuser or owns"):
        migrate.migrate(engine, worker_role=roles.RoleRequest(settings.database_url.replace("postgres@", "postgres:other@")))
    assert transact(engine, roles.granted) == []


def test_a_superuser_is_no_role_for_a_worker(settings: Settings, engine: Any) -> None:
    with pytest.raises(PacelineError, match="superuser or owns"):
        transact(engine, roles.grant_worker, "postgres")
    with pytest.raises(NotFoundError, match="There is no database role 'nobody here'"):
        transact(engine, roles.grant_worker, "nobody here")


@pytest.mark.parametrize(
    ("unfit", "why"), [
        ("createrole", "has createrole"), ("replication", "replication"), ("bypassrls", "bypassrls"),
        ("superuser", "superuser or owns"), (None, "is a member of pg_write_all_data"),
    ],
)  # fmt: skip
def test_a_role_that_reaches_past_its_grants_is_no_role_for_a_worker(
    role: str, postgres_server: PostgresServer, engine: Any, unfit: str | None, why: str
) -> None:
    quoted = ROLE.replace('"', '""')
    postgres_server.execute(f'alter role "{quoted}" {unfit}' if unfit else f'grant pg_write_all_data to "{quoted}"')
    with pytest.raises(PacelineError, match=why):
        transact(engine, roles.grant_worker, ROLE)


def test_the_command_prints_its_changes(role: str, cli_environment: dict[str, str]) -> None:
    done = CliRunner().invoke(paceline, ["db", "grant-worker", ROLE], env=cli_environment)
    missing = CliRunner().invoke(paceline, ["db", "grant-worker", "nobody here"], env=cli_environment)

    assert (done.exit_code, done.output) == (0, f"{ROLE} has the rights of a worker, and no others here.\n")
    assert missing.exit_code == 3


@pytest.fixture
def cli_environment(settings: Settings) -> dict[str, str]:
    return {"PACELINE_HOME": str(settings.home), "PACELINE_DATABASE_URL": settings.database_url}
