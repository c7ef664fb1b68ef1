"""The state of tasks and assets: values that user code keeps from try to try, or from run to run."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
compatible_from = "0008"

#: `json` like the values of XComs, so that numbers come back as they were.
TABLES = """
create table task_state (
    task_instance_id bigint not null references task_instance on delete cascade,
    key              text not null check (length(key) between 1 and 512),
    value            json not null,
    updated_at       timestamptz not null default clock_timestamp(),
    -- From then on it is not read any more. Null: never.
    expires_at       timestamptz,
    primary key (task_instance_id, key)
);
create table asset_state (
    -- Of an asset that may not have been updated yet, so it references none.
    uri        text not null,
    key        text not null check (length(key) between 1 and 512),
    value      json not null,
    updated_at timestamptz not null default clock_timestamp(),
    -- The task instance that wrote it last, whose run may be deleted.
    dag_id     text not null,
    run_id     text not null,
    task_id    text not null,
    map_index  int not null,
    primary key (uri, key)
);
"""


def upgrade() -> None:
    op.execute(TABLES)


def downgrade() -> None:
    op.execute("drop table asset_state, task_state")
