"""Task instances of a paused DAG that the queue service moved behind all others return to their places when it is unpaused.

The queue service subtracts 2^61 from their rank while it holds a shared lock on the row of dag_schedule, so this trigger sees all.
"""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
compatible_from = "0008"

UNPARK = """
create function unpark() returns trigger language plpgsql as $$
begin
    with parked as (
        select t.id from task_instance t join dag_run r on r.id = t.dag_run_id
         where r.dag_id = new.dag_id and r.state in ('queued', 'running')
           and t.state = 'scheduled' and t.rank <= -1152921504606846976
         order by t.id for no key update of t
    )
    update task_instance t set rank = t.rank + 2305843009213693952 from parked where t.id = parked.id;
    return null;
end $$;
create trigger dag_schedule_unparks after update of is_paused on dag_schedule for each row
    when (old.is_paused and not new.is_paused) execute function unpark();
revoke execute on function unpark() from public;
"""
#: An earlier release knows no parked ones.
FORMER = """
drop trigger dag_schedule_unparks on dag_schedule;
drop function unpark;
update task_instance set rank = rank + 2305843009213693952 where rank <= -1152921504606846976;
"""


def upgrade() -> None:
    op.execute(UNPARK)


def downgrade() -> None:
    op.execute(FORMER)
