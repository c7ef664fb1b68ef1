"""Variables and connections; what is secret in them is stored encrypted."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

VARIABLES = """
create table variable (
    key         text primary key,
    value       text not null,  -- a Fernet token
    description text not null default '',
    updated_at  timestamptz not null default now()
);

create table connection (
    conn_id     text primary key,
    conn_type   text not null,
    description text not null default '',
    host        text,
    schema      text,
    login       text,
    port        int,
    password    text,  -- a Fernet token
    extra       text,  -- a Fernet token of a JSON object
    updated_at  timestamptz not null default now()
);
"""


def upgrade() -> None:
    op.execute(VARIABLES)


def downgrade() -> None:
    op.execute("drop table connection, variable")
