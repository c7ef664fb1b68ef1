"""Backfills as rows that the scheduler works through."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BACKFILL = """
create table backfill (
    id              bigint generated always as identity primary key,
    dag_id          text not null,
    version_id      bigint not null references dag_version,
    from_date       timestamptz not null,
    to_date         timestamptz not null,
    max_active_runs int not null check (max_active_runs >= 1),
    reprocess       text not null check (reprocess in ('none', 'failed', 'completed')),
    reverse         boolean not null default false,
    conf            jsonb,  -- NULL: new runs get none, those that run again keep theirs
    is_paused       boolean not null default false,
    created_by      text not null default 'cli',
    created_at      timestamptz not null default now(),
    ended_at        timestamptz,
    cancelled       boolean not null default false
);
-- One at a time for a DAG.
create unique index backfill_active on backfill (dag_id) where ended_at is null;

create table backfill_run (
    backfill_id         bigint not null references backfill on delete cascade,
    ordinal             int not null,
    logical_date        timestamptz not null,
    data_interval_start timestamptz not null,
    data_interval_end   timestamptz not null,
    dag_run_id          bigint references dag_run on delete set null,
    state               text not null default 'waiting' check (state in ('waiting', 'made', 'left_out')),
    reason              text,
    primary key (backfill_id, ordinal)
);
create index backfill_run_of on backfill_run (dag_run_id) where dag_run_id is not null;
create index backfill_run_waiting on backfill_run (backfill_id, ordinal) where state = 'waiting';

alter table dag_run
    add column backfill_id      bigint references backfill on delete set null,
    add column backfill_ordinal int;  -- its place in that backfill
create index dag_run_backfill on dag_run (backfill_id) where backfill_id is not null and state in ('queued', 'running');
-- What waits to be started, in the order in which it is: runs of the schedule and by hand, and those of backfills.
create index dag_run_queued on dag_run (dag_id, run_after, id) where state = 'queued' and backfill_id is null;
create index dag_run_backfill_queued on dag_run (backfill_id, backfill_ordinal, id)
    where state = 'queued' and backfill_id is not null;
-- With dag_run_logical_date it gives the last runs of a DAG whatever its history.
create index dag_run_without_date on dag_run (dag_id, run_after) where logical_date is null;
"""


def upgrade() -> None:
    op.execute(BACKFILL)


def downgrade() -> None:
    op.execute(
        "drop index dag_run_without_date;"
        " alter table dag_run drop column backfill_id, drop column backfill_ordinal; drop table backfill_run, backfill;"
    )
