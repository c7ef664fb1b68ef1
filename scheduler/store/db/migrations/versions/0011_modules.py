"""DAG files know the modules of their folder that they import: a change of one of them is a change of the file."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
compatible_from = "0008"


def upgrade() -> None:
    op.execute("alter table dag_file add column modules text[] not null default '{}'")


def downgrade() -> None:
    op.execute("alter table dag_file drop column modules")
