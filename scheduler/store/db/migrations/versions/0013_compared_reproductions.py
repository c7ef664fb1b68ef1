"""Reproductions: the columns that their comparison leaves out, and its result."""

from pathlib import Path

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
#: Older commands compare without storing the result.
compatible_from = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Forget the results."""
    op.get_bind().exec_driver_sql("alter table reproduction drop column ignored, drop column verdict, drop column compared_end")
