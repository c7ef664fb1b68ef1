"""One trigger that deletes the rows of deleted task instances, in place of eight foreign keys."""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
#: Older processes delete and write the same rows, and hold the same locks.
compatible_from = "0001"

TABLES = ("task_try", "xcom", "task_state", "deferral", "external_job", "task_progress", "instance_note", "notice")


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    text = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    bind.exec_driver_sql(text.replace("{schema}", schema))


def downgrade() -> None:
    """Return to the foreign keys. They are not checked for the rows that exist: that would read them all under a lock."""
    bind = op.get_bind()
    bind.exec_driver_sql("drop trigger task_instance_gone on task_instance; drop function forget_instances()")
    for table in TABLES:
        bind.exec_driver_sql(
            f"alter table {table} add constraint {table}_task_instance_id_fkey foreign key (task_instance_id)"
            " references task_instance on delete cascade not valid"
        )
