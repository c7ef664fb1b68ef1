"""The earlier versions of runs, so that each try shows the code that it executed."""

from pathlib import Path

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
#: Older processes move runs without a note. The tries of such a run show its current version.
compatible_from = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Forget the earlier versions. All tries of a run show its current version then."""
    op.get_bind().exec_driver_sql("drop table run_version")
