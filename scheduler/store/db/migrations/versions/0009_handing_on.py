"""Pools say whether a worker may hand the slots of a task that ended on to one that waits, see docs/adr/0011."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
compatible_from = "0008"


def upgrade() -> None:
    op.execute("alter table pool add column hands_on boolean not null default false")


def downgrade() -> None:
    op.execute("alter table pool drop column hands_on")
