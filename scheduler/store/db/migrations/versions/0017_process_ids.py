"""A worker's role registers processes only under IDs that are those of processes: events show them as actors."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
compatible_from = "0008"

#: As in 0016, and the last check. Other actors are `cli:<user>` and `sql:<role>`.
FUNCTION = """
create or replace function refuse_foreign_registration() returns trigger language plpgsql
    set search_path = pg_catalog, {schema}, pg_temp as $$
begin
    if new.kind not in ('worker', 'waiter') or (tg_op = 'UPDATE' and coalesce(old.db_role, session_user) <> session_user) then
        raise insufficient_privilege using
            message = concat('the role ', session_user, ' may not register or change a ', new.kind, ' of another role');
    end if;
    if tg_op = 'INSERT' and (new.id !~ '^.+#[0-9a-f]{8}$' or new.id ~ '^(cli|sql|api):') then
        raise insufficient_privilege using message = concat(new.id, ' is not the ID of a process');
    end if;
    return null;
end $$;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    bind.exec_driver_sql(FUNCTION.replace("{schema}", schema))


def downgrade() -> None:
    raise NotImplementedError("It would open what this migration closes; restore a backup instead.")
