"""Events: every change of state by whom and why; settings of processes; which versions may use this schema; retention."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

EVENTS = """
-- Append-only, see docs/adr/0010. No foreign key: checking it would lock the row of the run at every change of a task instance;
-- the events of a run go with it instead (dag_run_gone).
create table event (
    at               timestamptz not null default clock_timestamp(),
    dag_run_id       bigint not null,
    task_instance_id bigint,  -- NULL: a change of the run
    try_number       int,
    from_state       text,
    to_state         text,
    actor            text not null,  -- id of a process, or cli:<user>
    reason           text,
    -- The way of the dispatch that this event ends: scheduled -> queued -> running has no events of its own.
    queued_at        timestamptz,
    queued_by        text,
    started_at       timestamptz,
    worker           text
) with (autovacuum_vacuum_insert_scale_factor = 0.5);
create index event_run on event (dag_run_id);

-- Whoever changes a state needs no right on this table. Every name is qualified, so that none is looked up in a schema of the
-- caller's; `set search_path` would say the same at twice the price of the event. The actor is set once by each connection.
create function log_task() returns trigger language plpgsql security definer as $$
begin
    -- That a dispatch which resumes began to run is an event of its own: started_at is that of its try.
    if old.state = 'queued' or (old.state = 'running' and old.resume is null) then
        insert into {schema}.event (dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason,
                                    queued_at, queued_by, started_at, worker)
        values (new.dag_run_id, new.id, old.try_number, old.state, new.state, {actor}, new.reason,
                old.queued_at, old.queued_by,
                case when old.state = 'running' then old.started_at end, case when old.state = 'running' then old.worker end);
    else
        insert into {schema}.event (dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason)
        values (new.dag_run_id, new.id, new.try_number, old.state, new.state, {actor}, new.reason);
    end if;
    return null;
end $$;
create trigger task_instance_event after update of state on task_instance for each row
    when (new.state is distinct from old.state
          and new.state is distinct from 'queued' and (new.state is distinct from 'running' or new.resume is not null)
          and current_setting('paceline.events', true) is distinct from 'off')
    execute function log_task();

create function log_run() returns trigger language plpgsql security definer as $$
declare
    former text := case when tg_op = 'UPDATE' then old.state end;
begin
    insert into {schema}.event (dag_run_id, from_state, to_state, actor, reason)
    values (new.id, former, new.state, {actor},
            case when tg_op = 'INSERT' then new.triggered_by
                 when new.state = 'failed' and new.timeout_at <= new.ended_at then 'timed_out' end);
    return null;
end $$;
create trigger dag_run_made after insert on dag_run for each row
    when (current_setting('paceline.events', true) is distinct from 'off') execute function log_run();
create trigger dag_run_event after update of state on dag_run for each row
    when (new.state is distinct from old.state and current_setting('paceline.events', true) is distinct from 'off')
    execute function log_run();

create function forget_events() returns trigger language plpgsql as $$
begin
    delete from event e using gone where e.dag_run_id = gone.id;
    return null;
end $$;
create trigger dag_run_gone after delete on dag_run referencing old table as gone for each statement
    execute function forget_events();
"""

#: Without a name of its own: what the user of the database is called.
ACTOR = """coalesce(nullif(pg_catalog.current_setting('paceline.actor', true), ''), pg_catalog.concat('sql:', session_user))"""

PROCESSES = """
alter table process
    add column settings jsonb,  -- those that must agree between processes: key -> value, of secrets a digest
    add column schema text;     -- the revision that its version of Paceline was made for
"""

#: The row of this table says the schema; processes of an older version ask it whether they may go on.
COMPATIBLE = """
alter table paceline_schema add column compatible_from text;
"""

#: What `store/retention` and the foreign keys it meets look rows up by.
RETENTION = """
create index dag_run_ended on dag_run (ended_at, id) where ended_at is not null;
create index dag_run_version on dag_run (version_id);
create index dag_run_asset_event_of on dag_run_asset_event (event_id);
create index asset_waiting_of on asset_waiting (event_id);
alter table dag_version add column depends_on_past boolean not null
    generated always as (data @? '$.tasks[*] ? (@.depends_on_past == true)') stored;
"""

#: task_instance has its own since 0001. These churn: few rows live at a time, each changed or deleted soon.
AUTOVACUUM = """
alter table dag_run set (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table xcom set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table notice set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table deferral set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table process set (fillfactor = 50, autovacuum_vacuum_threshold = 20, autovacuum_vacuum_cost_delay = 0);
alter table dag_file set (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table dag_schedule set (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    bind.exec_driver_sql(EVENTS.replace("{schema}", schema).replace("{actor}", ACTOR))
    for part in (PROCESSES, COMPATIBLE, RETENTION, AUTOVACUUM):
        op.execute(part)


def downgrade() -> None:
    op.execute(
        "drop trigger task_instance_event on task_instance; drop trigger dag_run_made on dag_run;"
        " drop trigger dag_run_event on dag_run; drop trigger dag_run_gone on dag_run;"
        " drop function log_task, log_run, forget_events; drop table event;"
        " drop index dag_run_ended, dag_run_version, dag_run_asset_event_of, asset_waiting_of;"
        " alter table dag_version drop column depends_on_past;"
        " alter table process drop column settings, drop column schema; alter table paceline_schema drop column compatible_from"
    )
