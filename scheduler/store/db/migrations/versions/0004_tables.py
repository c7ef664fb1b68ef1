"""Tables: pointers to Iceberg tables, and what tries have written but not published."""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
#: Processes of 0001 to 0003 know no tables: their tries get no token.
compatible_from = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Forget the tables. Their files stay in the warehouse."""
    op.get_bind().exec_driver_sql(
        "drop table table_pending, table_try, table_version, table_publication, iceberg_namespace_properties, iceberg_tables"
    )
