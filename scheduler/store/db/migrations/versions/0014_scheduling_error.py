"""Why the schedulers cannot decide a run, so that a person sees it."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
compatible_from = "0008"


def upgrade() -> None:
    op.execute("alter table dag_run add column scheduling_error text")  # null: the last look at it decided
    op.execute("create index dag_run_scheduling_error on dag_run (id) where scheduling_error is not null")


def downgrade() -> None:
    op.execute("alter table dag_run drop column scheduling_error")
