"""What the tasks of a bundle's DAG versions execute, so that two versions can be compared without parsing them again."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
#: Older schedulers leave the column empty, and nothing but a plan reads it.
compatible_from = "0001"


def upgrade() -> None:
    # {task_id: {"arguments": {name: text}, "code": digest}}; NULL for what stands in the DAGs folder.
    op.get_bind().exec_driver_sql("alter table dag_version add tasks jsonb")


def downgrade() -> None:
    """Forget the details. The plans of these versions do not name the tasks whose code differs then."""
    op.get_bind().exec_driver_sql("alter table dag_version drop tasks")
