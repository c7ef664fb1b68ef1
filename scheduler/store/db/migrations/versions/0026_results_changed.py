"""When results of a run last changed outside of a try, so that a pool process knows whether to read them again."""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
compatible_from = "0008"


def upgrade() -> None:
    op.execute("alter table dag_run add column results_changed_at timestamptz")


def downgrade() -> None:
    op.execute("alter table dag_run drop column results_changed_at")
