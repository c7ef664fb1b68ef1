"""Partitions: the key and date of a run and of an update, and the partitions for which DAGs collect updates."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
compatible_from = "0008"

PARTITIONS = """
alter table dag_run add column partition_key text, add column partition_date timestamptz;
alter table asset_event add column partition_key text, add column partition_date timestamptz;
-- The partition of the run that the update is for; empty for a DAG without partitions. One update may be for several.
alter table asset_waiting add column partition_key text not null default '';
alter table asset_waiting drop constraint asset_waiting_pkey, add primary key (dag_id, partition_key, uri, event_id);
"""


def upgrade() -> None:
    op.execute(PARTITIONS)


def downgrade() -> None:
    op.execute(
        "delete from asset_waiting where partition_key <> '';"
        " alter table asset_waiting drop constraint asset_waiting_pkey, add primary key (dag_id, uri, event_id);"
        " alter table asset_waiting drop column partition_key;"
        " alter table asset_event drop column partition_key, drop column partition_date;"
        " alter table dag_run drop column partition_key, drop column partition_date;"
    )
