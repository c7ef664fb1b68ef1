"""A row that PostgreSQL itself forgets in a crash, so that a crash is told from a stop in order; see docs/adr/0004."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
compatible_from = "0008"

#: Recovery from a crash, also from that of a single backend and after a failover, empties every unlogged table.
CRASH_FREE = """
create unlogged table crash_free (
    since timestamptz not null default clock_timestamp(),
    one   boolean primary key default true check (one)
);
insert into crash_free default values;
"""


def upgrade() -> None:
    op.execute(CRASH_FREE)


def downgrade() -> None:
    op.execute("drop table crash_free")
