"""Table upkeep: requests that are done once, and the folders of tables."""

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
#: Processes of 0004 note neither requests nor folders: a repeated request fails as before, and their folders are found when used.
compatible_from = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    op.get_bind().exec_driver_sql("drop table table_folder, table_request")
