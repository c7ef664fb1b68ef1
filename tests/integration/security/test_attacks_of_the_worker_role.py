"""Attacks of an author with the worker's database role: act as the owner of the tables, forge and suppress events."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg2 import errors
from support.bundle_parsing import GOOD, parse_next
from support.scenario import Scenario, chain

from scheduler.settings import Settings
from scheduler.store.dags import bundles
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db import roles
from scheduler.store.db.database import transact

from .conftest import ROLE, allowed, as_role

#: A session that calls a function of the owner with this in its search path runs `mine()` as the owner.
SHADOW = """
create function pg_temp.mine(value pg_catalog.text) returns boolean language plpgsql as $$
begin
    insert into {stolen} values (current_user);
    return true;
end $$;
create domain pg_temp.text as pg_catalog.text check (pg_temp.mine(value));
"""


@pytest.fixture
def scenario(settings: Settings, engine: Any, role: str) -> Iterator[Scenario]:
    """A run of one task that is queued, and the role of workers."""
    transact(engine, roles.grant_worker, ROLE)
    scenario = Scenario(settings)
    scenario.add(chain("d", 1))
    yield scenario
    scenario.close()


@pytest.fixture
def attacker(scenario: Scenario, role: str) -> Iterator[Any]:
    """A cursor of the role."""
    with as_role(role) as connection, connection.cursor() as cursor:
        yield cursor


def events(scenario: Scenario, what: str) -> list[Any]:
    return scenario.rows(f"select {what} from event order by at")


#: A run that the role makes, as TriggerDagRunOperator does.
NEW_RUN = (
    "insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after)"
    " select dag_id, 'mine', 'manual', 'queued', version_id, now() from dag_run limit 1"
)


def worker_of(attacker: Any, process_id: str = "worker-1#12345678", kind: str = "worker") -> str:
    """A process that the role registers, as workers do."""
    attacker.execute(
        "insert into process (id, kind, name, host, pid, queues, concurrency, schema) values (%s, %s, 'w', 'h', 1, '{}', 1, '0')",
        (process_id, kind),
    )
    return process_id


def queued(scenario: Scenario) -> int:
    """The id of a task instance that waits for a worker."""
    scenario.trigger("d", run_id="r")
    scenario.turn()
    return int(scenario.rows("select id from task_instance where state = 'queued'")[0][0])


def test_a_type_of_its_own_does_not_run_its_code_as_the_owner(scenario: Scenario, attacker: Any) -> None:
    scenario.sql("create table stolen (who text)")
    scenario.sql("grant all on stolen to public")
    scenario.trigger("d", run_id="r")
    attacker.connection.autocommit = False
    try:
        attacker.execute(SHADOW.format(stolen="public.stolen"))
    except errors.InsufficientPrivilege:
        attacker.connection.rollback()
    attacker.execute(NEW_RUN)
    attacker.connection.commit()

    assert scenario.rows("select who from stolen where who = 'postgres'") == []


def test_it_may_make_nothing_that_a_name_could_be_looked_up_in(scenario: Scenario, attacker: Any) -> None:
    for statement in (
        "create temp table event (x int)", "create type pg_temp.text as (x int)", "create domain pg_temp.text as pg_catalog.int4",
        "create function pg_temp.f() returns int language sql as 'select 1'", "create view pg_temp.v as select 1",
        "create schema mine", "create table public.mine (x int)", "create type public.mine as (x int)",
        "create operator public.= (leftarg = text, rightarg = text, function = pg_catalog.texteq)",
    ):  # fmt: skip
        with pytest.raises(errors.InsufficientPrivilege):
            attacker.execute(statement)


def test_every_function_that_acts_as_its_owner_looks_names_up_in_our_schema_alone(scenario: Scenario) -> None:
    rows = scenario.rows(
        "select p.oid::regprocedure::text, p.proconfig, has_function_privilege(%s, p.oid, 'execute')"
        " from pg_proc p where p.prosecdef and p.pronamespace = 'public'::regnamespace order by 1",
        (ROLE,),
    )
    # Each runs with the owner's rights for every session that changes a row. Read a new one as an attacker would.
    assert {row[0] for row in rows} == {
        "task_instance_changed()", "log_run()", "note_run()", "forget_events()", "forget_instances()", "analyze_task_instance()"
    }  # fmt: skip
    for name, config, callable_by_role in rows:
        fixed = None if name in QUALIFIED else ["search_path=pg_catalog, public, pg_temp"]
        assert config == fixed, name
        assert not callable_by_role, f"{name} could be made a trigger of a table of the role's own"


#: The functions that run as the owner with the search_path of the session, because a fixed one costs each call.
QUALIFIED = ("event_actor()", "refuse_incomplete(task_instance)", "task_instance_changed()")
#: What their source may have beside qualified names: keywords that look up nothing, variables, and aliases of tables.
WORDS = """
all and any array as begin case coalesce constraint declare else elsif end exists false foreach from if in_array insert into is loop
message not null operator or perform raise return schema select session_user table tg_op then true using values when where
check_violation insufficient_privilege missing named new one p s w what
"""


@pytest.mark.parametrize("function", QUALIFIED)
def test_a_function_without_a_search_path_of_its_own_looks_up_no_name(scenario: Scenario, function: str) -> None:
    source = scenario.rows("select prosrc from pg_proc where oid = %s::regprocedure", (function,))[0][0]

    assert _looked_up(source) == set()


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("operator(pg_catalog.=)", "=", {"="}),
        ("pg_catalog.concat(", "concat(", {"concat"}),
        ("named pg_catalog.text", "named text", {"text"}),
        ("public.event", "event", {"event"}),
        ("new.worker is not null and", "new.worker in ('a') and", {"in"}),
        ("new.worker is not null and", "new.worker is distinct from old.worker and", {"distinct"}),
        ("case when new.resume", "case new.state when 'running' then null when new.resume", {"case"}),
    ],
)
def test_a_name_that_is_looked_up_would_be_found(scenario: Scenario, before: str, after: str, found: set[str]) -> None:
    source = scenario.rows("select prosrc from pg_proc where proname = 'task_instance_changed'")[0][0]
    assert before in source

    assert _looked_up(source.replace(before, after, 1)) == found


def _looked_up(source: str) -> set[str]:
    """The words and signs in the source of a function for which PostgreSQL reads the search_path."""
    text = re.sub(r"--[^\n]*", " ", source)
    text = re.sub(
        r"'([^']*)'(::)?", lambda quoted: f"{quoted[1]} " if quoted[2] else " ", text
    )  # 'event'::regclass is looked up as well
    # "case x when" compares with the operator "=" that it finds.
    hidden = {"case"} if re.search(r"\bcase\b(?!\s+when\b)", text) else set()
    text = re.sub(r"\boperator\(pg_catalog\.[^)]+\)|\b(?:pg_catalog|public|new|old|one|p|s|w)\.\w+", " ", text)
    text = re.sub(r"(insert into\s+)\([^)]*\)", r"\1", text)  # the columns
    text = re.sub(r"\b(constraint|table|schema|message) =", r"\1", text)  # of "raise using"
    text = text.replace("in array", "in_array").replace(":=", " ").replace("::", " ")
    return hidden | set(re.findall(r"[a-z_]+|[^\w\s()\[\],;]+", text)) - set(WORDS.split())


#: Everything that a careless name in these functions could mean, in a schema of an attacker. Each fails when it is used.
TRAPS = """
create schema hostile;
create function hostile.trap() returns boolean language plpgsql as $$ begin raise exception 'trapped as %%', current_user; end $$;
do $$
declare
    one record;
begin
    for one in select oprname, oprleft::regtype as l, oprright::regtype as r from pg_operator
                where oprname = any (array['=', '<>', '<', '>', '<=', '>=']) and oprnamespace = 'pg_catalog'::regnamespace
                  and array[oprleft::regtype, oprright::regtype] <@ array['text', 'name', 'int4', 'int8', 'bool', 'uuid']::regtype[]
    loop
        execute format('create or replace function hostile.compare(%%s, %%s) returns boolean language sql as %%L',
                       one.l, one.r, 'select hostile.trap()');
        execute format('create operator hostile.%%s (leftarg = %%s, rightarg = %%s, function = hostile.compare)',
                       one.oprname, one.l, one.r);
    end loop;
    for one in select * from (values
        ('concat(variadic pg_catalog.text[]) returns pg_catalog.text'), ('left(pg_catalog.text, int) returns pg_catalog.text'),
        ('current_setting(pg_catalog.text, boolean) returns pg_catalog.text'),
        ('has_table_privilege(name, oid, pg_catalog.text) returns boolean')) f (head)
    loop
        execute format('create function hostile.%%s language plpgsql as $f$ begin return hostile.trap(); end $f$', one.head);
    end loop;
    for one in select unnest(array['event', 'notice', 'process', 'web_role', 'paceline_schema']) as name loop
        execute format('create table hostile.%%1$I (like public.%%1$I, check (hostile.trap()))', one.name);
    end loop;
end $$;
create domain hostile.text as pg_catalog.text check (hostile.trap());
grant usage on schema hostile to public;
grant all on all tables in schema hostile to public;
"""


def test_names_in_a_schema_of_the_session_are_not_used(scenario: Scenario, attacker: Any) -> None:
    ti = queued(scenario)
    own = worker_of(attacker)
    scenario.sql("update task_instance set notify = array['on_success', 'asset']")
    scenario.sql(TRAPS)
    attacker.execute("select set_config('paceline.actor', %s, false)", (own,))
    attacker.execute("set search_path = hostile, pg_catalog, public")
    change = "update public.task_instance set {} where id operator(pg_catalog.=) %s"
    with pytest.raises(errors.RaiseException, match="trapped"):
        attacker.execute("select 'a'::pg_catalog.text = 'b'::pg_catalog.text")

    attacker.execute(change.format("state = 'running', started_at = pg_catalog.now(), worker = %s"), (own, ti))
    with pytest.raises(errors.InsufficientPrivilege, match="is no process of the role"):
        attacker.execute(change.format("queued_by = 'cli:root'"), (ti,))
    with pytest.raises(errors.CheckViolation, match="cannot be running: no worker"):
        attacker.execute(change.format("worker = null"), (ti,))
    attacker.execute(change.format("state = 'success', ended_at = pg_catalog.now()"), (ti,))
    attacker.execute("select pg_catalog.set_config('paceline.actor', 'api:root', false)")
    attacker.execute(change.format("state = 'failed'"), (ti,))

    assert events(scenario, "from_state, to_state, actor")[-2:] == [
        ("running", "success", own), ("success", "failed", f"sql:{ROLE}")
    ]  # fmt: skip
    assert scenario.rows("select kind from notice order by id") == [("on_success",), ("asset",)]


def test_its_application_name_does_not_put_the_name_of_another_process_into_events(scenario: Scenario, attacker: Any) -> None:
    ti = queued(scenario)
    scheduler = scenario.rows("select id from process where kind = 'scheduler'")[0][0]
    for name in ("cli:root", scheduler, "nobody"):
        attacker.execute("select set_config('paceline.actor', %s, false)", (name,))
        attacker.execute("update task_instance set state = 'scheduled', scheduled_at = now() where id = %s", (ti,))
        attacker.execute("update task_instance set state = 'failed', ended_at = now() where id = %s", (ti,))
    assert set(events(scenario, "actor")[-6:]) == {(f"sql:{ROLE}",)}

    own = worker_of(attacker)
    attacker.execute("select set_config('paceline.actor', %s, false)", (own,))
    attacker.execute("update task_instance set state = 'success' where id = %s", (ti,))
    assert events(scenario, "actor")[-1] == (own,)


@pytest.mark.parametrize("name", ["cli:root", "sql:x", "cli:root#12345678", "root", "s0#1234567", "s0#1234567x", "#12345678"])
def test_it_registers_no_process_under_the_name_of_a_person_or_a_role(scenario: Scenario, attacker: Any, name: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege, match="is not the ID of a process"):
        worker_of(attacker, name)


def test_it_cannot_turn_events_off(scenario: Scenario, attacker: Any) -> None:
    ti = queued(scenario)
    attacker.execute("set paceline.events = 'off'")
    attacker.execute("update task_instance set state = 'failed', ended_at = now() where id = %s", (ti,))
    attacker.execute(NEW_RUN)
    assert events(scenario, "from_state, to_state")[-2:] == [("queued", "failed"), (None, "queued")]


def test_no_change_of_a_state_slips_by_as_a_step_on_the_way(scenario: Scenario, attacker: Any) -> None:
    ti = queued(scenario)
    own = worker_of(attacker)
    attacker.execute("update task_instance set state = 'success', ended_at = now() where id = %s", (ti,))
    attacker.execute("update task_instance set state = 'queued' where id = %s", (ti,))
    assert events(scenario, "from_state, to_state")[-1] == ("success", "queued")
    attacker.execute("update task_instance set state = 'success' where id = %s", (ti,))
    attacker.execute("update task_instance set state = 'running', started_at = now(), worker = %s where id = %s", (own, ti))
    assert events(scenario, "from_state, to_state")[-1] == ("success", "running")


def test_a_task_instance_it_makes_has_no_state_of_its_choice(scenario: Scenario, attacker: Any) -> None:
    queued(scenario)
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute("insert into task_instance (dag_run_id, task_no, task_id, queue, pool, map_index, state, ended_at)"
                         " select dag_run_id, task_no, task_id, queue, pool, 7, 'success', now() from task_instance")  # fmt: skip


@pytest.mark.parametrize("column", ["queued_by", "worker"])
def test_events_of_the_role_name_only_its_own_processes(scenario: Scenario, attacker: Any, column: str) -> None:
    ti = queued(scenario)
    scheduler = scenario.rows("select id from process where kind = 'scheduler'")[0][0]
    attacker.execute("update task_instance set queued_by = queued_by where id = %s", (ti,))
    scenario.sql("update task_instance set queued_by = 's9' where id = %s", ti)
    for name in (scheduler, "cli:root"):
        with pytest.raises(errors.InsufficientPrivilege, match="is no process of the role"):
            attacker.execute(f"update task_instance set {column} = %s where id = %s", (name, ti))
    attacker.execute(f"update task_instance set {column} = %s where id = %s", (worker_of(attacker), ti))


def test_it_registers_and_stops_no_scheduler(scenario: Scenario, attacker: Any) -> None:
    scheduler = scenario.rows("select id from process where kind = 'scheduler'")[0][0]
    with pytest.raises(errors.InsufficientPrivilege, match="may not register or change a scheduler"):
        worker_of(attacker, "scheduler-9#12345678", "scheduler")
    with pytest.raises(errors.InsufficientPrivilege, match="may not register or change a scheduler"):
        attacker.execute("update process set stopped_at = now() where id = %s", (scheduler,))
    worker_of(attacker)
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute("update process set kind = 'scheduler'")
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute("update process set db_role = 'postgres'")


def test_it_cannot_make_our_functions_triggers_of_its_own(scenario: Scenario, role: str, settings: Settings) -> None:
    """Even if it was granted the right to create temporary tables again."""
    scenario.sql(f"grant temporary on database {scenario.rows('select current_database()')[0][0]} to public")
    with as_role(role) as connection, connection.cursor() as cursor:
        cursor.execute("create temp table mine (id bigint, state text)")
        for timing, function in (("update", "task_instance_changed"), ("update", "log_run"), ("update", "note_run")):
            with pytest.raises(errors.InsufficientPrivilege):
                cursor.execute(f"create trigger t after {timing} on mine for each row execute function public.{function}()")
        with pytest.raises(errors.InsufficientPrivilege):
            cursor.execute("create trigger t after delete on mine referencing old table as gone"
                           " for each statement execute function public.forget_events()")  # fmt: skip


def test_a_process_of_the_version_before_keeps_its_name(scenario: Scenario, attacker: Any) -> None:
    ti = queued(scenario)
    own = worker_of(attacker, "old#12345678")
    scenario.sql("update process set db_role = null where id = %s", (own,))
    attacker.execute("select set_config('paceline.actor', %s, false)", (own,))
    attacker.execute("update process set heartbeat_at = now() where id = %s", (own,))
    attacker.execute("update task_instance set state = 'running', started_at = now(), worker = %s where id = %s", (own, ti))
    attacker.execute("update task_instance set state = 'success', ended_at = now() where id = %s", (ti,))
    assert events(scenario, "actor, worker")[-1] == (own, own)


def test_events_are_off_for_workers_when_a_scheduler_turned_them_off(scenario: Scenario, attacker: Any, settings: Settings) -> None:
    ti = queued(scenario)
    scenario.sql("update paceline_schema set record_events = false")
    before = len(events(scenario, "1"))
    attacker.execute("update task_instance set state = 'failed', ended_at = now() where id = %s", (ti,))
    assert len(events(scenario, "1")) == before


#: Ways to make a worker execute other code than what was deployed.
OTHER_CODE = (
    "insert into bundle (name) values ('mine')",
    "update bundle set wanted_id = wanted_id",
    "update bundle set version_id = version_id",
    "delete from bundle",
    "insert into bundle_version (bundle, number, digest, file_count, byte_count, created_by) values ('sales', 9, '', 0, 0, 'me')",
    "update bundle_version set state = 'ready'",
    "update bundle_version set digest = digest",
    "delete from bundle_version",
    "insert into bundle_blob (digest, content) values (sha256('x'), 'x')",
    "update bundle_blob set content = content",
    "delete from bundle_blob",
    "insert into bundle_path (bundle, path, first, digest, byte_count) select 'sales', 'b.py', 1, digest, 1 from bundle_blob",
    "update bundle_path set digest = digest",
    "delete from bundle_path",
    "update dag_version set bundle_version_id = bundle_version_id",
    "update dag set version_id = version_id",
)


def test_it_cannot_publish_or_change_code(scenario: Scenario, attacker: Any) -> None:
    transact(scenario.engine, bundles.publish, "sales", {"a.py": BundleFile(GOOD)}, by="ada")
    live = parse_next(scenario.engine)
    assert live is not None and live.is_live

    assert allowed(attacker, OTHER_CODE) == []
    attacker.execute("select content from bundle_blob")
    assert len(attacker.fetchall()) == 1
