"""Table reads: what runs have read, and the state that all tasks of a run read."""

from pathlib import Path

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
#: Processes of 0005 note no reads, and their tries read as of their own start.
compatible_from = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    op.get_bind().exec_driver_sql("drop table table_read, table_run; alter table table_try drop column run_publication")
