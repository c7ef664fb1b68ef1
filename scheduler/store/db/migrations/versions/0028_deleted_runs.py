"""Deleted runs whose files have yet to be deleted, so that the end of a process leaves no files behind."""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None
compatible_from = "0008"

TABLE = """
create table deleted_run (
    id bigint primary key,
    dag_id text not null,
    run_id text not null,
    logs boolean not null,
    due_at timestamptz not null
);
create index deleted_run_due on deleted_run (due_at, id)
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("drop table deleted_run")
