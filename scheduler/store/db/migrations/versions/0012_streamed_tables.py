"""Streamed tables: an index of the publications by streaming queries that are no updates of assets yet."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
#: Older schedulers leave these publications to a newer one.
compatible_from = "0001"
indexes = {"table_version_streamed": "table_version (publication) where facts ? 'streams'"}


def upgrade() -> None:
    """Nothing but the index, which is built beside work."""


def downgrade() -> None:
    op.get_bind().exec_driver_sql("drop index if exists table_version_streamed")
