"""none -> scheduled, skipped or upstream_failed: what the scheduler decides.

Zero rows updated is a lost race, which is a normal result. Rows are always locked in ID order; see docs/explanation/locks.md.
Where rows are known by ID, their state is compared as coalesce(state, ''), see claim.sql. This is so in all moves.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from paceline.states import Decision
from scheduler.store.db import prepared
from scheduler.store.db.rows import array_literal

DECIDE = prepared.of(
    "decide",
    {"runs": "bigint[]", "nos": "int[]", "indexes": "int[]", "states": "text[]", "reasons": "text[]"},
    """
    with found as materialized (  -- "offset 0": one index probe by number for each
        select t.id, n.state, n.reason
          from unnest(%(runs)s::bigint[], %(nos)s::int[], %(indexes)s::int[], %(states)s::text[], %(reasons)s::text[])
               n (run, task_no, map_index, state, reason)
         cross join lateral (
               select id from task_instance
                where dag_run_id = n.run and task_no = n.task_no and map_index = n.map_index offset 0) t
    ), decided as (
        select t.id, f.state, f.reason
          from found f join task_instance t on t.id = f.id and coalesce(t.state, '') = ''
         order by t.id
           for no key update of t
    )
    update task_instance t
       set state = d.state, reason = d.reason,
           try_number = t.try_number + case when d.state = 'scheduled' then 1 else 0 end,
           scheduled_at = case when d.state = 'scheduled' then clock_timestamp() end,
           ended_at = case when d.state <> 'scheduled' then clock_timestamp() end
      from decided d
     where t.id = d.id and coalesce(t.state, '') = ''
    """,
)


def decide(connection: Connection, decisions: Mapping[int, Sequence[Decision]]) -> int:
    """none -> scheduled, skipped or upstream_failed, as decided for each run. Returns the number of rows moved."""
    flat = [(run, one) for run, of_run in decisions.items() for one in of_run]
    moved = prepared.execute(
        connection,
        DECIDE,
        {
            "runs": array_literal(run for run, _ in flat),
            "nos": array_literal(one.task_no for _, one in flat),
            "indexes": array_literal(one.map_index for _, one in flat),
            "states": array_literal(one.state.value for _, one in flat),
            "reasons": array_literal(one.reason for _, one in flat),
        },
    )
    return moved.rowcount
