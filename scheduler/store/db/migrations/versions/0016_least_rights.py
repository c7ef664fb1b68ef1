"""Triggers that a worker's role cannot bend: fixed search paths, actors derived from the role, and a role for schedulers."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
compatible_from = "0008"

ROLES = """
-- Roles that schedulers and people's commands connect as, if that is not the owner: each migration grants anew.
create table scheduler_role (
    name text primary key
);
-- Which role registered a process. NULL: one that was there before this migration.
alter table process add column db_role text;
alter table process alter column db_role set default session_user;
-- core.record_events of the scheduler that started last, for sessions whose own word does not count.
alter table paceline_schema add column record_events boolean not null default true;
"""

#: A role that may write events itself is trusted: the owner and the role of schedulers. A worker's role is not.
TRUSTED = "pg_catalog.has_table_privilege(session_user, '{schema}.event'::pg_catalog.regclass, 'insert')"

#: `session_user` is the role that logged in, which `set role` and SECURITY DEFINER leave as it is.
FUNCTIONS = """
-- Who makes this change. A trusted session may name itself; any other is one of the processes that its role registered.
-- NULL: events are off.
create function event_actor() returns pg_catalog.text language plpgsql set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    named pg_catalog.text := nullif(current_setting('paceline.actor', true), '');
begin
    if {trusted} then
        if current_setting('paceline.events', true) = 'off' then
            return null;
        end if;
        return coalesce(named, concat('sql:', session_user));
    end if;
    if not (select s.record_events from {schema}.paceline_schema s) then
        return null;
    end if;
    if exists (select from {schema}.process p where p.id = named and {own}) then
        return named;
    end if;
    return concat('sql:', session_user);
end $$;

create or replace function log_task() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    who pg_catalog.text := {schema}.event_actor();
begin
    if who is null then
        return null;
    end if;
    if old.state = 'queued' or (old.state = 'running' and old.resume is null) then
        insert into {schema}.event (dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason,
                                    queued_at, queued_by, started_at, worker)
        values (new.dag_run_id, new.id, old.try_number, old.state, new.state, who, new.reason,
                old.queued_at, old.queued_by,
                case when old.state = 'running' then old.started_at end, case when old.state = 'running' then old.worker end);
    else
        insert into {schema}.event (dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason)
        values (new.dag_run_id, new.id, new.try_number, old.state, new.state, who, new.reason);
    end if;
    return null;
end $$;

create or replace function log_run() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    who pg_catalog.text := {schema}.event_actor();
begin
    if who is null then
        return null;
    end if;
    insert into {schema}.event (dag_run_id, from_state, to_state, actor, reason)
    values (new.id, case when tg_op = 'UPDATE' then old.state end, new.state, who,
            case when tg_op = 'INSERT' then new.triggered_by
                 when new.state = 'failed' and new.timeout_at <= new.ended_at then 'timed_out' end);
    return null;
end $$;

-- A worker's role cannot say that somebody else's process queued or ran a task: events take these columns over. With the rights
-- of the caller, so names are qualified: `set search_path` would cost as much again at each claim.
create function refuse_foreign_process() returns trigger language plpgsql as $$
declare
    named pg_catalog.text;
begin
    foreach named in array array[case when new.queued_by is distinct from old.queued_by then new.queued_by end,
                                 case when new.worker is distinct from old.worker then new.worker end] loop
        if named is not null and not exists (select from {schema}.process p where p.id operator(pg_catalog.=) named and {own}) then
            raise insufficient_privilege using message = pg_catalog.concat(named, ' is no process of the role ', session_user);
        end if;
    end loop;
    return null;
end $$;

create function refuse_foreign_registration() returns trigger language plpgsql
    set search_path = pg_catalog, {schema}, pg_temp as $$
begin
    if new.kind not in ('worker', 'waiter') or (tg_op = 'UPDATE' and coalesce(old.db_role, session_user) <> session_user) then
        raise insufficient_privilege using
            message = concat('the role ', session_user, ' may not register or change a ', new.kind, ' of another role');
    end if;
    return null;
end $$;

-- ANALYZE is a right of the owner; see store/statistics.
create function analyze_task_instance() returns void language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
begin
    analyze {schema}.task_instance;
end $$;
"""

#: Of processes whose role is not known any that runs tasks: those of the version before.
OWN = (
    "coalesce(p.db_role, session_user) operator(pg_catalog.=) session_user"
    " and p.kind operator(pg_catalog.=) any (array['worker', 'waiter'])"
)

#: The refusals come after the change and undo it: before it they would cost every change of a row one more lock of it.
#: Only scheduled -> queued -> running may go without an event of its own: any other way into these states has one.
TRIGGERS = """
drop trigger task_instance_event on task_instance;
create trigger task_instance_event after update of state on task_instance for each row
    when (new.state is distinct from old.state
          and (new.state is distinct from 'queued' or coalesce(old.state, 'scheduled') <> 'scheduled')
          and (new.state is distinct from 'running' or old.state is distinct from 'queued' or new.resume is not null))
    execute function log_task();
drop trigger dag_run_made on dag_run;
create trigger dag_run_made after insert on dag_run for each row execute function log_run();
drop trigger dag_run_event on dag_run;
create trigger dag_run_event after update of state on dag_run for each row
    when (new.state is distinct from old.state) execute function log_run();

create trigger task_instance_process after update of queued_by, worker on task_instance for each row
    when ((new.queued_by is distinct from old.queued_by or new.worker is distinct from old.worker) and not {trusted})
    execute function refuse_foreign_process();
create trigger process_role after insert or update on process for each row
    when (not {trusted}) execute function refuse_foreign_registration();

alter function note_task() set search_path = pg_catalog, {schema}, pg_temp;
alter function note_run() set search_path = pg_catalog, {schema}, pg_temp;
alter function forget_events() set search_path = pg_catalog, {schema}, pg_temp;
"""

#: Whoever may execute a trigger's function could make it a trigger of a table of their own, and have it write as the owner.
NOT_FOR_ALL = """
revoke execute on function event_actor(), log_task(), log_run(), note_task(), note_run(), forget_events(),
    refuse_foreign_process(), refuse_foreign_registration(), analyze_task_instance() from public;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    op.execute(ROLES)
    for part in (FUNCTIONS, TRIGGERS, NOT_FOR_ALL):
        text = part.replace("{trusted}", TRUSTED).replace("{own}", OWN).replace("{schema}", schema)
        bind.exec_driver_sql(text)


def downgrade() -> None:
    raise NotImplementedError("It would open what this migration closes; restore a backup instead.")
