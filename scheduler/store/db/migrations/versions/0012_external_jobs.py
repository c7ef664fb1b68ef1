"""Applications that run outside of their worker: what they are found by, and who follows them."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
compatible_from = "0008"

#: One row an application. `dispatch_id` is the dispatch that follows it: a retry that attaches to it puts its own there.
#: `max_tries` is that of the task instance when it was submitted: clearing changes it, so that a cleared task instance
#: does not attach to what it was cleared of. Without `ended_at` the application may still run.
EXTERNAL_JOBS = """
create table external_job (
    id               bigint generated always as identity primary key,
    task_instance_id bigint not null references task_instance on delete cascade,
    try_number       int not null,
    dispatch_id      uuid not null,
    max_tries        int not null,
    queue            text not null,
    tag              text not null unique,
    kind             text not null check (kind in ('local', 'standalone', 'yarn', 'kubernetes', 'connect')),
    deploy_mode      text not null check (deploy_mode in ('client', 'cluster')),
    master           text not null,
    reach            jsonb not null default '{}',
    driver_id        text,
    application_id   text,
    ui_url           text,
    state            text not null default 'submitted'
                     check (state in ('submitted', 'running', 'finished', 'failed', 'killed', 'unknown')),
    detail           text not null default '',
    submitted_at     timestamptz not null default clock_timestamp(),
    at               timestamptz not null default clock_timestamp(),
    ended_at         timestamptz
);
create index external_job_instance on external_job (task_instance_id, id);
create index external_job_open on external_job (queue, id) where ended_at is null;
"""


def upgrade() -> None:
    op.execute(EXTERNAL_JOBS)


def downgrade() -> None:
    op.execute("drop table external_job")
