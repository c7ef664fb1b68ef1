"""How runs ended over hours and days: of all DAGs, and of the DAGs with each tag."""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from scheduler.store.db import rows
from scheduler.store.read.listing import Filters

Row = dict[str, Any]
#: Tags with the most runs.
MOST_TAGS = 12


def trend(connection: Connection, filters: Filters, *, since: datetime, bar_hours: int, bars: int) -> list[Row]:
    """The number of runs that ended in each bar, by its start and by state: with `tag` None of all DAGs, then of each tag."""
    filters.where("r.ended_at >= w.since and r.ended_at < w.since + make_interval(secs => w.bar_s * w.bars)")
    where = f"where {' and '.join(filters.conditions)}"
    found = connection.exec_driver_sql(
        f"""
        with wanted as (select %(since)s::timestamptz as since, %(bar_s)s::int as bar_s, %(bars)s::int as bars
        ), ended as materialized (
            select r.dag_id, date_bin(make_interval(secs => w.bar_s), r.ended_at, w.since) as start, r.state, count(*) as count
              from dag_run r cross join wanted w {where} group by 1, 2, 3
        ), tagged as (
            select d.dag_id, jsonb_array_elements_text(v.data->'tags') as tag
              from (select distinct dag_id from ended) e join dag d using (dag_id) join dag_version v on v.id = d.version_id
        ), most as (
            select tag from tagged join ended using (dag_id) group by 1 order by sum(count) desc, 1 limit {MOST_TAGS}
        )
        select null as tag, start, state, sum(count)::bigint as count from ended group by 2, 3
         union all
        select tag, start, state, sum(count)::bigint from ended join tagged using (dag_id) join most using (tag) group by 1, 2, 3
         order by 1 nulls first, 2
        """,
        filters.parameters | {"since": since, "bar_s": bar_hours * 3600, "bars": bars},
    )
    return rows.dicts(found)
