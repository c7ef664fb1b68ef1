"""The whole history of a run in order: its own changes, those of its task instances, and what followed from them."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection

from scheduler.deciding.why_past import Step, of_run, sentence
from scheduler.settings import Settings
from scheduler.store.queries import events, reads, why_history

Row = dict[str, Any]
#: Notices that were delivered or abandoned, Spark applications, and missed SLAs and deadlines, as (at, task_id, map_index, text).
BESIDE = """
select n.ended_at as at, t.task_id, t.map_index, n.try_number,
       case when n.error is null then 'Delivered ' else 'Could not deliver ' end
           || case when n.kind like 'email%%' then 'the email ' else 'the callback ' end || n.kind
           || coalesce(': ' || n.error, '') || '.' as text
  from notice n left join task_instance t on t.id = n.task_instance_id
 where n.dag_run_id = %(run)s and n.ended_at is not null and n.kind <> 'asset'
union all
select j.submitted_at, t.task_id, t.map_index, j.try_number,
       'Submitted to ' || j.master || coalesce(' as ' || j.application_id, '') || '.'
  from external_job j join task_instance t on t.id = j.task_instance_id where t.dag_run_id = %(run)s
union all
select j.ended_at, t.task_id, t.map_index, j.try_number,
       'The application' || coalesce(' ' || j.application_id, '') || ' ended: ' || j.state
           || case when j.detail = '' then '' else ', ' || j.detail end || '.'
  from external_job j join task_instance t on t.id = j.task_instance_id
 where t.dag_run_id = %(run)s and j.ended_at is not null
union all
select d.missed_at, t.task_id, t.map_index, null,
       case d.kind when 'sla' then 'Missed its SLA of ' else 'The run missed its deadline of ' end
           || to_char(d.due_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC.'
  from deadline d left join task_instance t on t.dag_run_id = d.dag_run_id and t.task_no = d.task_no and t.map_index = -1
 where d.dag_run_id = %(run)s and d.missed_at is not null
union all
select e.created_at, e.task_id, e.map_index, null, 'Updated the asset ' || e.uri || '.'
  from asset_event e join dag_run r on r.dag_id = e.dag_id and r.run_id = e.run_id where r.id = %(run)s
"""


def story(connection: Connection, settings: Settings, dag_id: str, run_id: str) -> list[Row]:
    """Each step: `at`, `task_id` (None for the run itself), `map_index`, `try_number`, `actor` and a sentence in `text`.

    The longest waits have their cause. NotFoundError. Without core.record_events, only what followed is known.
    """
    run: int = reads.run_alone(connection, dag_id, run_id)["id"]
    steps = [*_steps(connection, settings, run), *_beside(connection, run)]
    return sorted(steps, key=lambda step: step["at"])


def _steps(connection: Connection, settings: Settings, run: int) -> Iterator[Row]:
    last: dict[tuple[str | None, int | None], Step] = {}
    found: list[tuple[Row, Step | None, Step]] = []
    for event in events.of_run(connection, run):
        key = event["task_id"], event["map_index"]
        step = why_history.step_of(event)
        found.append((event, last.get(key), step))
        last[key] = step
    explained = why_history.longest_waits([(before, step) for _, before, step in found])
    for number, (event, before, step) in enumerate(found):
        long = before if number in explained else None  # the wait between both had a cause worth a look
        if event["task_id"] is None:
            text = of_run(step, before, None if long is None else why_history.crowd_of_run(connection, run, long, step))
        else:
            place = (run, event["task_id"], event["map_index"])
            crowd = None if long is None else why_history.crowd_of(connection, settings, place, long, step)
            text = sentence(step, before, crowd)
        yield {name: event[name] for name in ("at", "task_id", "map_index", "try_number", "actor")} | {"text": text}


def _beside(connection: Connection, run: int) -> Iterator[Row]:
    for row in connection.exec_driver_sql(BESIDE, {"run": run}).mappings():
        yield dict(row) | {"actor": None}
