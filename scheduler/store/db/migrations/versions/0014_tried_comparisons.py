"""Reproductions: how often schedulers have tried to compare them, and why that failed."""

from pathlib import Path

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
#: Older schedulers delete tables that nobody has compared, as before.
compatible_from = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Forget the tries."""
    op.get_bind().exec_driver_sql(
        "alter table reproduction drop column tries, drop column tried_at, drop column tried_end, drop column failure"
    )
