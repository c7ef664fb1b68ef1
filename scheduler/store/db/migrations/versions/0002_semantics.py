"""Mapped, deferred, rescheduled, stopped and removed task instances; what branches decided; limits of tasks; rank."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

RUNS = """
alter table dag_run
    add column clear_number int not null default 0,
    add column timeout_at   timestamptz,  -- when dagrun_timeout is over; set at the start of the run
    add column notify       text[],       -- which notices its end gives: dag_success, dag_failure
    drop constraint dag_run_run_type_check,
    add constraint dag_run_run_type_check check (run_type in ('scheduled', 'manual', 'backfill', 'asset_triggered'));
create index dag_schedule_next on dag_schedule (next_run_after) where not is_paused;
create index dag_run_timeout on dag_run (timeout_at) where state = 'running' and timeout_at is not null;
"""

TASK_INSTANCES = """
alter table task_instance
    add column rank      bigint not null default 0,  -- priority_weight; that of a backfill lies below every other
    add column asked     text check (asked in ('none', 'success', 'failed', 'skipped')),  -- what a shutdown is to become
    add column resume    jsonb,  -- what the next dispatch of this try goes on from: pokes, trigger event
    add column decision  jsonb,  -- {"skip": [task_id, ...]}: what a branch decided when it succeeded
    add column map_label text,   -- map_index_template, rendered
    add column notify    text[], -- which of its changes give a notice, see 0004
    add column max_active_tis_per_dag    int,
    add column max_active_tis_per_dagrun int,
    drop constraint task_instance_state,
    add constraint task_instance_state check (state in ('scheduled', 'queued', 'running', 'success', 'failed', 'up_for_retry',
        'up_for_reschedule', 'deferred', 'upstream_failed', 'skipped', 'removed', 'shutdown')),
    add constraint task_instance_deferred check (state <> 'deferred' or (dispatch_id is not null and resume is not null)),
    drop constraint task_instance_shutdown,
    add constraint task_instance_shutdown check (state <> 'shutdown' or
        (started_at is not null and dispatch_id is not null and worker is not null and asked is not null));
update task_instance set rank = priority_weight;

drop index task_instance_unfinished, task_instance_waiting, task_instance_due;
create index task_instance_unfinished on task_instance (dag_run_id, task_no)
    where state is null
       or state in ('scheduled', 'queued', 'running', 'up_for_retry', 'up_for_reschedule', 'deferred', 'shutdown');
create index task_instance_waiting on task_instance (pool, rank desc, id) where state = 'scheduled';
create index task_instance_due on task_instance (due_at) where state in ('up_for_retry', 'up_for_reschedule', 'deferred');
create index task_instance_deferred on task_instance (pool) include (pool_slots) where state = 'deferred';
create index task_instance_limited on task_instance (task_id, dag_run_id)
    where (max_active_tis_per_dag is not null or max_active_tis_per_dagrun is not null)
      and state in ('queued', 'running', 'shutdown', 'deferred');
"""

#: A deferred task instance waits for a trigger, which a waiter process awaits for it.
DEFERRAL = """
create table deferral (
    task_instance_id bigint primary key references task_instance on delete cascade,
    dispatch_id      uuid not null,  -- the dispatch that deferred; a later one has nothing to do with this row
    classpath        text not null,
    kwargs           jsonb not null default '{}',
    file             text,           -- the DAG file, if the class is defined there
    created_at       timestamptz not null default now(),
    waiter           text            -- process id of the waiter that awaits it
);
create index deferral_free on deferral (created_at) where waiter is null;

alter table process drop constraint process_kind_check,
    add constraint process_kind_check check (kind in ('scheduler', 'worker', 'waiter'));
"""


def upgrade() -> None:
    for part in (RUNS, TASK_INSTANCES, DEFERRAL):
        op.execute(part)


def downgrade() -> None:
    raise NotImplementedError("Rows in the states of this schema have no place in the former one; restore a backup instead.")
