"""Bundles: folders of code whose versions are kept, and the version of each DAG version."""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
#: Processes of 0001 and 0002 know no bundles: nothing can be deployed while one of their workers runs.
compatible_from = "0001"
#: For retention.
indexes = {"dag_version_bundle": "dag_version (bundle_version_id) where bundle_version_id is not null"}


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    bind.exec_driver_sql(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").replace("{schema}", schema))


def downgrade() -> None:
    """Drop the bundles. DAGs of bundles become inactive, and their versions stay as those of a DAGs folder."""
    op.get_bind().exec_driver_sql(
        """
        update dag set is_active = false where bundle is not null;
        alter table dag drop column bundle;
        alter table dag_version drop column bundle_version_id;
        drop table bundle_path, bundle_blob;
        alter table bundle drop column version_id, drop column wanted_id;
        drop table bundle_version, bundle;
        drop function forget_bundle_paths();
        """
    )
