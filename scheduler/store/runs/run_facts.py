"""The facts that decide about the tasks of a run beside its states: branches, the previous run, and lengths of mapped results."""

from collections.abc import Collection

from sqlalchemy import Connection

from scheduler.deciding import past
from scheduler.deciding.evaluate import Facts
from scheduler.serialized.dag import SerializedDag
from scheduler.states import Before, Branched, TaskState


def read(connection: Connection, dag: SerializedDag, dag_run_id: int) -> Facts:
    """The facts, beside the states, that decide about the tasks of a run. It reads only the facts that this DAG needs."""
    of_branches = branched(connection, dag_run_id) if dag.has_branches else ()
    if not dag.depends_on_past:
        return Facts(branched=of_branches)
    earlier = before(connection, dag_run_id, past.relevant(dag), catchup=dag.catchup)
    return Facts(branched=of_branches, past=past.waits(dag, earlier))


def branched(connection: Connection, dag_run_id: int) -> tuple[Branched, ...]:
    """The branches of a run that succeeded, with their decisions."""
    rows = connection.exec_driver_sql(
        "select task_no, map_index, decision->'skip' from task_instance"
        " where dag_run_id = %s and state = 'success' and decision is not null",
        (dag_run_id,),
    )
    return tuple(Branched(task_no=no, map_index=index, skip=frozenset(skip)) for no, index, skip in rows)


def before(connection: Connection, dag_run_id: int, wanted: Collection[str], *, catchup: bool) -> Before | None:
    """The previous run by logical date, with the states of the tasks `wanted`; None without one, or for the first run of a
    backfill. With catchup, manual runs do not count.
    """
    row = connection.exec_driver_sql(
        """
        select b.id, b.run_id, r.dag_id, r.logical_date
          from dag_run r
         cross join lateral (
               select id, run_id from dag_run
                where dag_id = r.dag_id and logical_date < r.logical_date
                  and (not %(catchup)s or run_type in ('scheduled', 'backfill'))
                order by logical_date desc limit 1) b
         where r.id = %(run)s
           and (r.backfill_id is null or exists (
                select 1 from backfill_run o
                 where o.backfill_id = r.backfill_id and o.ordinal < r.backfill_ordinal and o.state = 'made'))
        """,
        {"run": dag_run_id, "catchup": catchup},
    ).first()
    if row is None:
        return None
    states: dict[str, list[TaskState]] = {}
    rows = connection.exec_driver_sql(
        "select task_id, state from task_instance where dag_run_id = %s and task_id = any(%s)", (row.id, list(wanted))
    )
    for task_id, state in rows:
        states.setdefault(task_id, []).append(TaskState(state or "none"))
    missing = [task_id for task_id in wanted if task_id not in states]
    ran_earlier = _ran(connection, row.dag_id, row.logical_date, missing) if missing else frozenset()
    return Before(run_id=row.run_id, states=states, ran_earlier=ran_earlier)


def lengths(
    connection: Connection, dag_run_id: int, dag: SerializedDag, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """The lengths of XComs: the size of a list or dict, or the number of instances of a mapped task that pushed one."""
    rows = connection.exec_driver_sql(
        """
        select t.task_id, x.key, count(*) as instances,
               max(case json_typeof(x.value) when 'array' then json_array_length(x.value)
                   when 'object' then (select count(*) from json_object_keys(x.value)) end) as length
          from unnest(%(tasks)s::int[], %(keys)s::text[]) n (task_no, key)
          join task_instance t on t.dag_run_id = %(run)s and t.task_no = n.task_no
          join xcom x on x.task_instance_id = t.id and x.key = n.key
         group by 1, 2
        """,
        {"run": dag_run_id, "tasks": [dag.number[task_id] for task_id, _ in keys], "keys": [key for _, key in keys]},
    )
    mapped = {task_id for task_id, _ in keys if dag.tasks[dag.number[task_id]].is_mapped}
    length_of = {(task_id, key): 0 for task_id, key in keys if task_id in mapped}
    for row in rows:
        length = row.instances if row.task_id in mapped else row.length
        if length is not None:
            length_of[row.task_id, row.key] = length
    return length_of


def _ran(connection: Connection, dag_id: str, earlier_than: object, task_ids: Collection[str]) -> frozenset[str]:
    rows = connection.exec_driver_sql(
        """
        select n.task_id from unnest(%(tasks)s::text[]) n (task_id)
         where exists (select 1 from dag_run r join task_instance t on t.dag_run_id = r.id and t.task_id = n.task_id
                        where r.dag_id = %(dag)s and r.logical_date < %(date)s)
        """,
        {"tasks": list(task_ids), "dag": dag_id, "date": earlier_than},
    )
    return frozenset(rows.scalars())
