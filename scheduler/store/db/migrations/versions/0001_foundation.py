"""The first schema: DAG versions, runs, task instances and the processes that work on them."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

DAGS = """
create table dag_version (
    id           bigint generated always as identity primary key,
    dag_id       text not null,
    number       int not null,
    content_hash text not null,
    data         jsonb not null,
    max_active_runs  int not null generated always as (coalesce((data->>'max_active_runs')::int, 16)) stored,
    max_active_tasks int not null generated always as (coalesce((data->>'max_active_tasks')::int, 16)) stored,
    created_at   timestamptz not null default now(),
    unique (dag_id, content_hash),
    unique (dag_id, number)
);

-- Owned by the parser: written in one short transaction per file.
create table dag (
    dag_id     text primary key,
    file       text not null,
    is_active  boolean not null default true,
    version_id bigint not null references dag_version,
    parsed_at  timestamptz not null default now()
);
create index dag_file_idx on dag (file);

-- Owned by the scheduler: what comes next for a DAG. Apart from dag, so that a parser never holds a row the loop wants.
create table dag_schedule (
    dag_id             text primary key,
    is_paused          boolean not null default false,
    planned_version_id bigint,
    next_logical_date  timestamptz,
    next_interval_start timestamptz,
    next_interval_end  timestamptz,
    next_run_after     timestamptz
);

create table dag_file (
    path          text primary key,
    modified_at   timestamptz not null,
    next_parse_at timestamptz not null default now(),
    claimed_by    text,
    claimed_until timestamptz,
    parsed_at     timestamptz,
    duration_s    double precision,
    dag_count     int not null default 0
);
create index dag_file_due on dag_file (next_parse_at);

create table import_error (
    file      text primary key,
    line      int,
    message   text not null,
    traceback text not null default '',
    seen_at   timestamptz not null default now()
);
"""

RUNS = """
create table dag_run (
    id                  bigint generated always as identity primary key,
    dag_id              text not null,
    run_id              text not null,
    run_type            text not null check (run_type in ('scheduled', 'manual', 'backfill')),
    state               text not null check (state in ('queued', 'running', 'success', 'failed')),
    version_id          bigint not null references dag_version,
    logical_date        timestamptz,
    data_interval_start timestamptz,
    data_interval_end   timestamptz,
    run_after           timestamptz not null,
    conf                jsonb not null default '{}',
    triggered_by        text,
    queued_at           timestamptz not null default now(),
    started_at          timestamptz,
    ended_at            timestamptz,
    examined_at         timestamptz,
    unique (dag_id, run_id),
    constraint dag_run_running check (state <> 'running' or started_at is not null),
    constraint dag_run_ended check ((state in ('success', 'failed')) = (ended_at is not null))
);
create unique index dag_run_logical_date on dag_run (dag_id, logical_date) where logical_date is not null;
create index dag_run_unfinished on dag_run (dag_id, state) where state in ('queued', 'running');
create index dag_run_examined on dag_run (examined_at nulls first) where state = 'running';
"""

TASK_INSTANCES = """
create table task_instance (
    id              bigint generated always as identity primary key,
    dag_run_id      bigint not null references dag_run on delete cascade,
    task_id         text not null,
    map_index       int not null default -1,
    task_no         int not null,
    state           text,
    try_number      int not null default 0,
    max_tries       int not null default 0,
    queue           text not null,
    pool            text not null,
    pool_slots      int not null default 1 check (pool_slots >= 1),
    priority_weight int not null default 1,
    dispatch_id     uuid,
    dispatched_at   timestamptz,
    queued_by       text,
    worker          text,
    scheduled_at    timestamptz,
    queued_at       timestamptz,
    started_at      timestamptz,
    ended_at        timestamptz,
    due_at          timestamptz,
    reason          text,
    unique (dag_run_id, task_no, map_index),
    constraint task_instance_state check (state in ('scheduled', 'queued', 'running', 'success', 'failed', 'up_for_retry',
        'up_for_reschedule', 'upstream_failed', 'skipped', 'removed', 'shutdown')),
    constraint task_instance_scheduled check (state <> 'scheduled' or (scheduled_at is not null)),
    constraint task_instance_queued check (state <> 'queued' or
        (queued_at is not null and dispatch_id is not null and queued_by is not null)),
    constraint task_instance_running check (state <> 'running' or
        (started_at is not null and dispatch_id is not null and worker is not null)),
    constraint task_instance_shutdown check (state <> 'shutdown' or
        (started_at is not null and dispatch_id is not null and worker is not null)),
    constraint task_instance_up_for_retry check (state <> 'up_for_retry' or (due_at is not null)),
    constraint task_instance_up_for_reschedule check (state <> 'up_for_reschedule' or (due_at is not null)),
    constraint task_instance_success check (state <> 'success' or (ended_at is not null)),
    constraint task_instance_failed check (state <> 'failed' or (ended_at is not null)),
    constraint task_instance_skipped check (state <> 'skipped' or (ended_at is not null)),
    constraint task_instance_upstream_failed check (state <> 'upstream_failed' or (ended_at is not null))
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Every hot query reads one of these; finished task instances are in none of them.
create index task_instance_unfinished on task_instance (dag_run_id, task_no)
    where state is null or state in ('scheduled', 'queued', 'running', 'up_for_retry', 'up_for_reschedule', 'shutdown');
create index task_instance_waiting on task_instance (pool, priority_weight desc, id) where state = 'scheduled';
create index task_instance_holding on task_instance (pool, queue) include (pool_slots, dag_run_id)
    where state in ('queued', 'running', 'shutdown');
create index task_instance_due on task_instance (due_at) where state in ('up_for_retry', 'up_for_reschedule');

-- One row for each try that ended and was followed by another.
create table task_try (
    task_instance_id bigint not null references task_instance on delete cascade,
    try_number       int not null,
    dispatch_id      uuid,
    state            text,
    queued_by        text,
    worker           text,
    scheduled_at     timestamptz,
    queued_at        timestamptz,
    started_at       timestamptz,
    ended_at         timestamptz,
    reason           text
);
create index task_try_instance on task_try (task_instance_id, try_number);

create table xcom (
    task_instance_id bigint not null references task_instance on delete cascade,
    key              text not null,
    value            json not null,
    created_at       timestamptz not null default now(),
    primary key (task_instance_id, key)
);
"""

PROCESSES = """
create table pool (
    name             text primary key,
    slots            int not null check (slots >= -1),
    description      text not null default '',
    include_deferred boolean not null default false,
    queue            text
);

-- Schedulers and workers: a new row for each start, so a name that comes back is never mistaken for the one that died.
create table process (
    id           text primary key,
    kind         text not null check (kind in ('scheduler', 'worker')),
    name         text not null,
    host         text not null,
    pid          int not null,
    queues       text[] not null default '{}',
    concurrency  int not null default 0,
    started_at   timestamptz not null default now(),
    heartbeat_at timestamptz not null default now(),
    stopped_at   timestamptz
);
create index process_alive on process (kind, heartbeat_at) where stopped_at is null;
"""


def upgrade() -> None:
    for part in (DAGS, RUNS, TASK_INSTANCES, PROCESSES):
        op.execute(part)


def downgrade() -> None:
    op.execute(
        "drop table xcom, task_try, task_instance, dag_run, pool, process, import_error, dag_file, dag_schedule, dag, dag_version"
    )
