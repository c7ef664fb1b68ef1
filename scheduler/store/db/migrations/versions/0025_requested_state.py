"""The state with which a run ends once its teardowns have ended, because a person or dagrun_timeout ended its other tasks."""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
compatible_from = "0008"


def upgrade() -> None:
    op.execute("alter table dag_run add column requested_state text check (requested_state in ('success', 'failed'))")


def downgrade() -> None:
    op.execute("alter table dag_run drop column requested_state")
