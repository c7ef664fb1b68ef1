"""Reproductions: runs that execute the code of an earlier run on its inputs, and write into a namespace of their own."""

from pathlib import Path

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
#: An older worker would let a reproduction write the tables of everybody: none is made while one runs.
compatible_from = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Forget what tries have read, for which no reproduction is left. The runs become manual ones."""
    op.get_bind().exec_driver_sql(
        """
        update dag_run set run_type = 'manual' where run_type = 'reproduction';
        alter table dag_run
            drop constraint dag_run_run_type_check,
            add constraint dag_run_run_type_check
                check (run_type in ('scheduled', 'manual', 'backfill', 'asset_triggered')) not valid;
        drop table reproduction, table_pin;
        """
    )
