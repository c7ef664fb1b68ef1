"""waiting or ended -> none: a person clears task instances, which are then decided and run again."""

from collections.abc import Sequence

from sqlalchemy import Connection

from paceline.states import NOT_CLEARABLE
from scheduler.store.moves.reset import KEEP_TRY, NO_TRY, forget_triggers
from scheduler.store.queueing.limits import OWN_RANK

CLEARED_TRY = KEEP_TRY.format(state="t.state", ended_at="coalesce(t.ended_at, clock_timestamp())")


def clear(connection: Connection, ti_ids: Sequence[int], retries: Sequence[int]) -> None:
    """Clear these locked task instances, each with so many retries again; the XComs and the trigger of the try are deleted."""
    if not ti_ids:
        return
    parameters = {"ids": list(ti_ids), "retries": list(retries)}
    connection.exec_driver_sql(f"{CLEARED_TRY} where t.id = any(%(ids)s) and t.started_at is not null order by t.id", parameters)
    connection.exec_driver_sql("delete from xcom where task_instance_id = any(%(ids)s)", parameters)
    forget_triggers(connection, ti_ids)
    connection.exec_driver_sql(
        f"""
        update task_instance t
           set state = null, reason = 'cleared', max_tries = t.try_number + n.retries, rank = {OWN_RANK}, {NO_TRY}
          from unnest(%(ids)s::bigint[], %(retries)s::int[]) n (id, retries)
         where t.id = n.id and t.state not in {NOT_CLEARABLE.sql}
        """,
        parameters,
    )
