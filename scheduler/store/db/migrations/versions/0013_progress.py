"""How far a running task is, as its worker last saw it: not logged, since whoever loses it sees the next within a second."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
compatible_from = "0008"

TABLE = """
create unlogged table task_progress (
    task_instance_id bigint primary key references task_instance on delete cascade,
    try_number       int not null,
    progress         jsonb not null,
    seen_at          timestamptz not null default clock_timestamp()
);
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("drop table task_progress")
