"""SLAs of task instances and deadlines of runs: when each is due, and the notices of missed ones.

An SLA applies to scheduled runs: the task must have succeeded, or been skipped, by the end of the run's data interval (else its
logical date, else the time it was due) plus `sla`. A deadline applies to every run of its DAG: the run must have succeeded.
"""

from typing import Any

import psycopg2.extras
from sqlalchemy import Connection

from paceline.states import PASSED
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.dags import ORDER
from scheduler.store.db.database import step

#: Whether an SLA or a deadline has passed, see store/upkeep/pending_work.
PENDING = "exists (select from deadline where missed_at is null and due_at <= clock_timestamp())"


def plan(connection: Connection, dag: SerializedDag, dag_run_id: int, *, only_future: bool = False) -> None:
    """Store when the run `dag_run_id` misses its SLAs and deadlines, if the DAG has any."""
    promised = [(no, task.sla_s) for no, task in enumerate(dag.tasks) if task.sla_s is not None]
    if promised:
        connection.exec_driver_sql(
            """
            with planned as (
                select r.id, n.task_no,
                       coalesce(r.data_interval_end, r.logical_date, r.run_after) + make_interval(secs => n.sla_s) as due_at
                  from dag_run r, unnest(%(nos)s::int[], %(slas)s::float[]) n (task_no, sla_s)
                 where r.id = %(run)s and r.run_type = 'scheduled'
            )
            insert into deadline (dag_run_id, task_no, kind, due_at)
            select id, task_no, 'sla', due_at from planned where due_at > clock_timestamp() or not %(only_future)s
            on conflict (dag_run_id, kind, task_no, number) do update set due_at = excluded.due_at, missed_at = null
            """,
            {
                "run": dag_run_id,
                "nos": [no for no, _ in promised],
                "slas": [sla_s for _, sla_s in promised],
                "only_future": only_future,
            },
        )
    if dag.deadlines:
        _plan_deadlines(connection, dag, dag_run_id, only_future=only_future)


def replan(connection: Connection, dag_run_id: int) -> None:
    """Plan again for a run that was cleared, which the caller has locked. SLAs and deadlines in the past stay as they are."""
    connection.exec_driver_sql("delete from deadline where dag_run_id = %s and missed_at is null", (dag_run_id,))
    data = connection.exec_driver_sql(
        """
        select v.data from dag_run r join dag_version v on v.id = r.version_id
         where r.id = %s and (v.data->'deadlines' <> '[]' or jsonb_path_exists(v.data, '$.tasks[*].sla_s ? (@ != null)'))
        """,
        (dag_run_id,),
    ).scalar_one_or_none()
    if data is not None:
        plan(connection, SerializedDag.from_json(data), dag_run_id, only_future=True)


def runs_due(connection: Connection, *, limit: int) -> list[int]:
    """Runs with an SLA or deadline in the past, longest ago first."""
    rows = connection.exec_driver_sql(
        """
        select dag_run_id from deadline where missed_at is null and due_at <= statement_timestamp()
         group by dag_run_id order by min(due_at), dag_run_id limit %(limit)s
        """,
        {"limit": limit},
    )
    return list(rows.scalars())


@step("deadline")
def settle(connection: Connection, dag_run_id: int) -> tuple[int, int]:
    """Delete the SLAs and deadlines that one run has met, and record those that it missed, with a notice and email for each.

    Returns the numbers of those that were met and missed. The run and its task instances are locked before they are read, because a
    concurrent report may store that they were in time.
    """
    # One time for all statements: what becomes due after it is left to the next pass.
    now = connection.exec_driver_sql(
        "select clock_timestamp() from dag_run where id = %s for no key update skip locked", (dag_run_id,)
    ).scalar()
    if now is None:
        return 0, 0
    connection.exec_driver_sql(
        """
        select t.id from task_instance t
         where t.dag_run_id = %(run)s and t.task_no in (
               select task_no from deadline where dag_run_id = %(run)s and kind = 'sla' and missed_at is null and due_at <= %(now)s)
         order by t.id for no key update
        """,
        {"run": dag_run_id, "now": now},
    )
    met = connection.exec_driver_sql(
        f"""
        delete from deadline d using dag_run r
         where d.dag_run_id = %(run)s and r.id = d.dag_run_id and d.missed_at is null and d.due_at <= %(now)s
           and case d.kind when 'deadline' then r.state = 'success' and r.ended_at <= d.due_at
               else not exists (select 1 from task_instance t where t.dag_run_id = d.dag_run_id and t.task_no = d.task_no
                                and t.state is distinct from 'removed'
                                and not coalesce(t.state in {PASSED.sql} and t.ended_at <= d.due_at, false)) end
        """,
        {"run": dag_run_id, "now": now},
    )
    missed = connection.exec_driver_sql(
        """
        with missed as (
            update deadline d set missed_at = clock_timestamp()
             where d.dag_run_id = %(run)s and d.missed_at is null and d.due_at <= %(now)s
            returning d.*
        ), asks as (
            select m.*, case when m.kind = 'sla' then v.data->'tasks'->m.task_no end as task,
                   (v.data->>'sla_miss_callback')::boolean as callback,
                   (select min(t.id) from task_instance t where t.dag_run_id = m.dag_run_id and t.task_no = m.task_no) as ti
              from missed m join dag_run r on r.id = m.dag_run_id join dag_version v on v.id = r.version_id
        ), written as (
            insert into notice (kind, dag_run_id, task_instance_id, data, reason)
            select k.kind, a.dag_run_id, a.ti,
                   jsonb_build_object('number', a.number, 'due_at', a.due_at, 'task_id', a.task->>'task_id'),
                   case a.kind when 'sla' then 'not finished by ' else 'the run had not succeeded by ' end || a.due_at
              from asks a cross join (values ('deadline'), ('sla_miss'), ('email_sla')) k (kind)
             where case k.kind when 'deadline' then a.kind = 'deadline'
                               when 'sla_miss' then a.kind = 'sla' and a.callback
                               else a.kind = 'sla' and jsonb_array_length(a.task->'email') > 0 end
             order by a.due_at, a.task_no, k.kind
        )
        select count(*) from missed
        """,
        {"run": dag_run_id, "now": now},
    )
    return met.rowcount, int(missed.scalar_one())


def _plan_deadlines(connection: Connection, dag: SerializedDag, dag_run_id: int, *, only_future: bool) -> None:
    """One row for each deadline whose reference is known."""
    average: list[Any] = [one for one in dag.deadlines if one["reference"] == "average_runtime"]
    most = max((one["max_runs"] for one in average), default=0)
    connection.exec_driver_sql(
        f"""
        with former as (
            select extract(epoch from e.ended_at - e.started_at) as took_s,
                   row_number() over (order by {ORDER.format("e")} desc, e.id desc) as age
              from dag_run e
             where e.dag_id = %(dag)s and e.state = 'success' and e.started_at is not null and e.id <> %(run)s
               and e.run_type <> 'reproduction'
             order by {ORDER.format("e")} desc, e.id desc limit %(most)s
        ), planned as (
            select r.id, s.number - 1 as number,
                   case s.spec->>'reference'
                   when 'dagrun_logical_date' then r.logical_date
                   when 'dagrun_queued_at' then r.queued_at
                   when 'fixed_datetime' then (s.spec->>'at')::timestamptz
                   when 'average_runtime' then r.queued_at + make_interval(secs => (
                        select avg(took_s)::float from former where age <= (s.spec->>'max_runs')::int
                        having count(*) >= (s.spec->>'min_runs')::int))
                   end + make_interval(secs => (s.spec->>'interval_s')::float) as due_at
              from dag_run r, jsonb_array_elements(%(specs)s::jsonb) with ordinality s (spec, number)
             where r.id = %(run)s and r.run_type <> 'reproduction'
        )
        insert into deadline (dag_run_id, kind, number, due_at)
        select id, 'deadline', number, due_at from planned
         where due_at is not null and (due_at > clock_timestamp() or not %(only_future)s)
        on conflict (dag_run_id, kind, task_no, number) do update set due_at = excluded.due_at, missed_at = null
        """,
        {
            "run": dag_run_id,
            "dag": dag.dag_id,
            "specs": psycopg2.extras.Json(list(dag.deadlines)),
            "most": most,
            "only_future": only_future,
        },
    )
