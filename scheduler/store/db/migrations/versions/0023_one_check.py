"""One check of a task instance instead of fourteen, shorter conditions of its triggers, and an earlier vacuum.

PostgreSQL parses the stored text of each of them again in every statement that changes a row. That was a tenth of its CPU per task.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
compatible_from = "0008"
indexes = {
    # The newest runs of all DAGs, for lists. A step back keeps it: dropping it would lock a second table.
    "dag_run_after": "dag_run (run_after, id)",
}

#: The operators are qualified, so that no operator in another schema of a session's search_path takes their place.
CHECK = """
create function task_instance_complete(
    state text, asked text, pool_slots int, scheduled_at timestamptz, queued_at timestamptz, queued_by text, dispatch_id uuid,
    worker text, started_at timestamptz, due_at timestamptz, ended_at timestamptz, resume jsonb
) returns boolean language plpgsql immutable parallel safe as $$
begin
    return pool_slots operator(pg_catalog.>=) 1
       and (asked is null or asked operator(pg_catalog.=) any (array['none', 'success', 'failed', 'skipped']))
       and case
        when state is null then true
        when state operator(pg_catalog.=) 'scheduled' then scheduled_at is not null
        when state operator(pg_catalog.=) 'queued' then queued_at is not null and dispatch_id is not null and queued_by is not null
        when state operator(pg_catalog.=) 'running' then started_at is not null and dispatch_id is not null and worker is not null
        when state operator(pg_catalog.=) 'success' then ended_at is not null
        when state operator(pg_catalog.=) 'failed' then ended_at is not null
        when state operator(pg_catalog.=) 'skipped' then ended_at is not null
        when state operator(pg_catalog.=) 'upstream_failed' then ended_at is not null
        when state operator(pg_catalog.=) 'up_for_retry' then due_at is not null
        when state operator(pg_catalog.=) 'up_for_reschedule' then due_at is not null
        when state operator(pg_catalog.=) 'deferred' then dispatch_id is not null and resume is not null
        when state operator(pg_catalog.=) 'removed' then true
        when state operator(pg_catalog.=) 'shutdown' then
            started_at is not null and dispatch_id is not null and worker is not null and asked is not null
        else false
    end;
end $$;

-- "not valid": every row has passed the checks that this one replaces, so PostgreSQL need not read the table under a lock.
alter table task_instance
    add constraint task_instance_complete check (task_instance_complete(state, asked, pool_slots, scheduled_at, queued_at,
        queued_by, dispatch_id, worker, started_at, due_at, ended_at, resume)) not valid,
    drop constraint task_instance_state, drop constraint task_instance_asked_check, drop constraint task_instance_pool_slots_check,
    drop constraint task_instance_scheduled, drop constraint task_instance_queued, drop constraint task_instance_running,
    drop constraint task_instance_shutdown, drop constraint task_instance_up_for_retry,
    drop constraint task_instance_up_for_reschedule, drop constraint task_instance_deferred, drop constraint task_instance_success,
    drop constraint task_instance_failed, drop constraint task_instance_skipped, drop constraint task_instance_upstream_failed;
"""
FORMER_CHECKS = """
alter table task_instance
    add constraint task_instance_state check (state in ('scheduled', 'queued', 'running', 'success', 'failed', 'up_for_retry',
        'up_for_reschedule', 'deferred', 'upstream_failed', 'skipped', 'removed', 'shutdown')) not valid,
    add constraint task_instance_asked_check check (asked in ('none', 'success', 'failed', 'skipped')) not valid,
    add constraint task_instance_pool_slots_check check (pool_slots >= 1) not valid,
    add constraint task_instance_scheduled check (state <> 'scheduled' or scheduled_at is not null) not valid,
    add constraint task_instance_queued check (state <> 'queued' or
        (queued_at is not null and dispatch_id is not null and queued_by is not null)) not valid,
    add constraint task_instance_running check (state <> 'running' or
        (started_at is not null and dispatch_id is not null and worker is not null)) not valid,
    add constraint task_instance_shutdown check (state <> 'shutdown' or
        (started_at is not null and dispatch_id is not null and worker is not null and asked is not null)) not valid,
    add constraint task_instance_up_for_retry check (state <> 'up_for_retry' or due_at is not null) not valid,
    add constraint task_instance_up_for_reschedule check (state <> 'up_for_reschedule' or due_at is not null) not valid,
    add constraint task_instance_deferred check (state <> 'deferred' or (dispatch_id is not null and resume is not null)) not valid,
    add constraint task_instance_success check (state <> 'success' or ended_at is not null) not valid,
    add constraint task_instance_failed check (state <> 'failed' or ended_at is not null) not valid,
    add constraint task_instance_skipped check (state <> 'skipped' or ended_at is not null) not valid,
    add constraint task_instance_upstream_failed check (state <> 'upstream_failed' or ended_at is not null) not valid,
    drop constraint task_instance_complete;
drop function task_instance_complete;
"""
#: The start of a try has no event of its own: that of its end has both times. refuse_foreign_process ignores a process that stays
#: the same. FORMER_TRIGGERS are those of the schema 0022.
TRIGGERS = """
create function task_instance_logged(former text, state text, resume jsonb) returns boolean
    language plpgsql immutable parallel safe as $$
begin
    return coalesce(state, '') operator(pg_catalog.<>) coalesce(former, '')
       and (coalesce(state, '') operator(pg_catalog.<>) 'queued' or former operator(pg_catalog.<>) 'scheduled')
       and (coalesce(state, '') operator(pg_catalog.<>) 'running'
            or former operator(pg_catalog.<>) all (array['queued', 'scheduled']) or resume is not null);
end $$;
create or replace trigger task_instance_event after update of state on task_instance for each row
    when (task_instance_logged(old.state, new.state, new.resume)) execute function log_task();
create or replace trigger task_instance_process after update of queued_by, worker on task_instance for each row
    when (not has_table_privilege(session_user, 'event'::regclass, 'insert')) execute function refuse_foreign_process();
"""
FORMER_TRIGGERS = """
create or replace trigger task_instance_event after update of state on task_instance for each row
    when (new.state is distinct from old.state
          and (new.state is distinct from 'queued' or coalesce(old.state, 'scheduled') <> 'scheduled')
          and (new.state is distinct from 'running' or coalesce(old.state, 'queued') not in ('queued', 'scheduled')
               or new.resume is not null))
    execute function log_task();
drop function task_instance_logged;
create or replace trigger task_instance_process after update of queued_by, worker on task_instance for each row
    when ((new.queued_by is distinct from old.queued_by or new.worker is distinct from old.worker)
          and not has_table_privilege(session_user, 'event'::regclass, 'insert'))
    execute function refuse_foreign_process();
"""
#: Searches of an index walk over the entries of dead rows until a vacuum has cleaned it, which a long history must not delay.
VACUUM = """
alter table task_instance set (autovacuum_vacuum_scale_factor = 0.002, autovacuum_vacuum_threshold = 5000,
    vacuum_index_cleanup = on);
"""
FORMER_VACUUM = """
alter table task_instance set (autovacuum_vacuum_scale_factor = 0.02);
alter table task_instance reset (autovacuum_vacuum_threshold, vacuum_index_cleanup);
"""


def upgrade() -> None:
    op.execute(CHECK)
    op.execute(TRIGGERS)
    op.execute(VACUUM)


def downgrade() -> None:
    op.execute(FORMER_VACUUM)
    op.execute(FORMER_TRIGGERS)
    op.execute(FORMER_CHECKS)
