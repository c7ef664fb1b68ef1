"""Notices: what a change of a run or task instance asks to be told or done, written in the transaction of that change."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NOTICES = """
-- The outbox: callbacks and emails to run, updates of assets to pass on. Each is done once; `attempts` above 1 tells a
-- callback that a crash in its middle made it run again. Kinds: on_execute, on_success, on_failure, on_retry, on_skipped,
-- dag_success, dag_failure, sla_miss, deadline, email_failure, email_retry, email_sla, asset.
create table notice (
    id               bigint generated always as identity primary key,
    kind             text not null,
    dag_run_id       bigint not null references dag_run on delete cascade,
    task_instance_id bigint references task_instance on delete cascade,
    try_number       int,
    state            text,
    reason           text,
    data             jsonb,
    created_at       timestamptz not null default clock_timestamp(),
    claimed_by       text,
    claimed_until    timestamptz,
    attempts         int not null default 0,  -- times it was begun
    done             int not null default 0,  -- callbacks of this event that have ended
    ended_at         timestamptz,
    error            text
);
create index notice_open on notice (id) where ended_at is null;
create index notice_failed on notice (id) where ended_at is not null and error is not null;
create index notice_instance on notice (task_instance_id);
create index notice_run on notice (dag_run_id);

create table deadline (
    id               bigint generated always as identity primary key,
    dag_run_id       bigint not null references dag_run on delete cascade,
    task_no          int not null default -1,  -- -1: of the run
    kind             text not null check (kind in ('sla', 'deadline')),
    number           int not null default 0,   -- which of the DAG's deadlines
    due_at           timestamptz not null,
    missed_at        timestamptz,
    unique (dag_run_id, kind, task_no, number)
);
create index deadline_open on deadline (due_at) where missed_at is null;

-- Whoever changes a state, the notice is written with it. WHEN keeps this free for all that ask for no notice.
create function note_task() returns trigger language plpgsql as $$
declare
    what text := case
        when new.state = 'running' and old.state = 'queued' and new.resume is null then 'execute'
        when new.state = 'success' and old.state in ('running', 'shutdown') then 'success'
        when new.state = 'failed' and old.state in ('running', 'shutdown') then 'failure'
        when new.state = 'up_for_retry' then 'retry'
        when new.state = 'skipped' and old.state = 'running' then 'skipped'
    end;
    one text;
begin
    if what is not null then
        foreach one in array new.notify loop
            if one in ('on_' || what, 'email_' || what) or (one = 'asset' and what = 'success') then
                insert into notice (kind, dag_run_id, task_instance_id, try_number, state, reason)
                values (one, new.dag_run_id, new.id, new.try_number, new.state, new.reason);
            end if;
        end loop;
    end if;
    return null;
end $$;
create trigger task_instance_notice after update of state on task_instance for each row
    when (new.notify is not null and new.state is distinct from old.state) execute function note_task();

create function note_run() returns trigger language plpgsql as $$
declare
    what text := case new.state when 'success' then 'dag_success' else 'dag_failure' end;
begin
    if what = any(new.notify) then
        insert into notice (kind, dag_run_id, state, reason)
        values (what, new.id, new.state,
                case when new.state = 'success' then 'success'
                     when new.timeout_at <= new.ended_at then 'timed_out'
                     else 'task_failure' end);
    end if;
    return null;
end $$;
create trigger dag_run_notice after update of state on dag_run for each row
    when (new.notify is not null and new.state in ('success', 'failed') and old.state in ('queued', 'running'))
    execute function note_run();
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(NOTICES)


def downgrade() -> None:
    op.execute(
        "drop trigger task_instance_notice on task_instance; drop trigger dag_run_notice on dag_run;"
        " drop function note_task, note_run; drop table deadline, notice;"
    )
