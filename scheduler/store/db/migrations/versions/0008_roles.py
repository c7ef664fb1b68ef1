"""Roles for workers: what triggers write, they write as the owner of the tables; which roles were granted."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

#: Roles that `paceline db grant-worker` was called for: each migration grants anew.
ROLES = """
create table worker_role (
    name           text primary key,
    may_clear_runs boolean not null default false
);
"""

#: A worker's role may change a state, but write no notice and no event itself. Names are looked up in our schema and nowhere else.
TRIGGERS = """
do $$
declare
    one regprocedure;
begin
    for one in select oid from pg_proc
                where pronamespace = current_schema()::regnamespace and prorettype = 'trigger'::regtype
                   and proname not in ('log_task', 'log_run')  -- 0007 says why not
    loop
        execute format('alter function %%s {becomes}', one, current_schema());
    end loop;
end $$;
"""


def upgrade() -> None:
    op.execute(ROLES)
    op.get_bind().exec_driver_sql(TRIGGERS.format(becomes="security definer set search_path = %%2$I, pg_temp"))


def downgrade() -> None:
    op.get_bind().exec_driver_sql(TRIGGERS.format(becomes="security invoker reset search_path"))
    op.execute("drop table worker_role")
