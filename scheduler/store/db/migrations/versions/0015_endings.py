"""An index of endings by time: the sweep of every scheduler asks it for the runs in which a task instance ended lately."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
compatible_from = "0008"


def upgrade() -> None:
    op.execute("create index task_instance_ended on task_instance (ended_at) where ended_at is not null")


def downgrade() -> None:
    op.execute("drop index task_instance_ended")
