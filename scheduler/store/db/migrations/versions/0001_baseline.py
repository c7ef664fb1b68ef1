"""The first schema, in the file of SQL beside this one."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    bind.exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").replace("{schema}", schema))
