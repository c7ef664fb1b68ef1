"""In-place follow: a task instance may go to running without being queued. That is an execution, and writes no event of its own."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
compatible_from = "0008"

#: What resumes an earlier dispatch always has an event.
STATEMENTS = """
drop trigger task_instance_event on task_instance;
create trigger task_instance_event after update of state on task_instance for each row
    when (new.state is distinct from old.state
          and (new.state is distinct from 'queued' or coalesce(old.state, 'scheduled') <> 'scheduled')
          and (new.state is distinct from 'running' or coalesce(old.state, 'queued') not in ('queued', 'scheduled')
               or new.resume is not null))
    execute function log_task();

create or replace function note_task() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    what text := case
        when new.state = 'running' and new.resume is null then 'execute'
        when new.state = 'success' and old.state in ('running', 'shutdown') then 'success'
        when new.state = 'failed' and old.state in ('running', 'shutdown') then 'failure'
        when new.state = 'up_for_retry' then 'retry'
        when new.state = 'skipped' and old.state = 'running' then 'skipped'
    end;
    one text;
begin
    if what is not null then
        foreach one in array new.notify loop
            if one in ('on_' || what, 'email_' || what) or (one = 'asset' and what = 'success') then
                insert into {schema}.notice (kind, dag_run_id, task_instance_id, try_number, state, reason)
                values (one, new.dag_run_id, new.id, new.try_number, new.state, new.reason);
            end if;
        end loop;
    end if;
    return null;
end $$;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    bind.exec_driver_sql(STATEMENTS.replace("{schema}", schema))


def downgrade() -> None:
    raise NotImplementedError("Workers may continue in place; restore a backup instead.")
