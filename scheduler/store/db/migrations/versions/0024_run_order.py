"""An index of the runs of each DAG in their order, by logical date, or by run_after without one."""

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
compatible_from = "0008"
indexes = {
    # The run before another, for depends_on_past. A step back keeps it.
    "dag_run_ordered": "dag_run (dag_id, (coalesce(logical_date, run_after)), id)",
}


def upgrade() -> None:
    """Only the index."""


def downgrade() -> None:
    """Nothing to undo."""
