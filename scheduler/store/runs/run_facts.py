"""The facts that decide about the tasks of a run beside its states: branches, the previous run, and lengths of mapped results."""

from collections.abc import Collection

from sqlalchemy import Connection

from paceline.states import Before, Branched, TaskState
from scheduler.deciding import rules
from scheduler.deciding.evaluate import Facts
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.dags import AFTER, ORDER
from scheduler.store.db import prepared

#: The run `b` of the same DAG comes before `r`. With catchup, manual runs do not count; reproductions never do, and have none.
EARLIER = f"""
    b.dag_id = r.dag_id and {AFTER.format("r", "b")} and (not %(catchup)s or b.run_type <> 'manual')
    and b.run_type <> 'reproduction' and r.run_type <> 'reproduction'
"""
#: The instance `t` counts for later runs: a removed one is as if it did not exist.
COUNTS = "t.state is distinct from 'removed'"


def read(connection: Connection, dag: SerializedDag, dag_run_id: int) -> Facts:
    """The facts, beside the states, that decide about the tasks of a run. It reads only the facts that this DAG needs."""
    of_branches = branched(connection, dag_run_id) if dag.has_branches else ()
    if not dag.depends_on_past:
        return Facts(branched=of_branches)
    earlier = before(connection, dag_run_id, rules.past_relevant(dag), catchup=dag.catchup)
    return Facts(branched=of_branches, past=rules.past_waits(dag, earlier))


def branched(connection: Connection, dag_run_id: int) -> tuple[Branched, ...]:
    """The branches of a run that succeeded, with their decisions."""
    rows = connection.exec_driver_sql(
        "select task_no, map_index, decision->'skip' from task_instance"
        " where dag_run_id = %s and state = 'success' and decision is not null",
        (dag_run_id,),
    )
    return tuple(Branched(task_no=no, map_index=index, skip=frozenset(skip)) for no, index, skip in rows)


def before(connection: Connection, dag_run_id: int, wanted: Collection[str], *, catchup: bool) -> Before | None:
    """The previous run by dags.ORDER, with the states of the tasks `wanted`; None without one, or for the first run of a
    backfill. With catchup, manual runs do not count.
    """
    previous = connection.exec_driver_sql(
        f"""
        select b.id, b.run_id
          from dag_run r
         cross join lateral (
               select b.id, b.run_id from dag_run b where {EARLIER} order by {ORDER.format("b")} desc, b.id desc limit 1) b
         where r.id = %(run)s
           and (r.backfill_id is null or exists (
                select 1 from backfill_run o
                 where o.backfill_id = r.backfill_id and o.ordinal < r.backfill_ordinal and o.state = 'made'))
        """,
        {"run": dag_run_id, "catchup": catchup},
    ).first()
    if previous is None:
        return None
    states = _states(connection, [previous.id], wanted)[previous.id]
    missing = [task_id for task_id in wanted if task_id not in states]
    if not missing:
        return Before(run_id=previous.run_id, states=states)
    found = connection.exec_driver_sql(
        f"""
        select n.task_id, b.id, b.run_id
          from unnest(%(tasks)s::text[]) n (task_id)
          join dag_run r on r.id = %(run)s
         cross join lateral (
               select b.id, b.run_id from dag_run b
                where {EARLIER}
                  and exists (select 1 from task_instance t
                               where t.dag_run_id = b.id and t.task_id = n.task_id and {COUNTS})
                order by {ORDER.format("b")} desc, b.id desc limit 1) b
        """,
        {"tasks": missing, "run": dag_run_id, "catchup": catchup},
    ).all()
    of_runs = _states(connection, {row.id for row in found}, wanted)
    return Before(
        run_id=previous.run_id,
        states=states,
        earlier={row.task_id: Before(run_id=row.run_id, states=of_runs[row.id]) for row in found},
    )


def _states(connection: Connection, dag_run_ids: Collection[int], wanted: Collection[str]) -> dict[int, dict[str, list[TaskState]]]:
    """The states of the instances of these tasks by run and task_id."""
    states: dict[int, dict[str, list[TaskState]]] = {run: {} for run in dag_run_ids}
    rows = connection.exec_driver_sql(
        f"select t.dag_run_id, t.task_id, t.state from task_instance t"
        f" where t.dag_run_id = any(%s) and t.task_id = any(%s) and {COUNTS}",
        (list(dag_run_ids), list(wanted)),
    )
    for run, task_id, state in rows:
        states[run].setdefault(task_id, []).append(TaskState(state or "none"))
    return states


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


STATES_OF = prepared.of(
    "states_of",
    {"ids": "bigint[]"},
    """
    select dag_run_id, case when map_index <> -1 then task_no end as mapped_no, state,
           array_agg(case when map_index = -1 then task_no else map_index end) as numbers
      from task_instance where dag_run_id = any(%(ids)s) group by 1, 2, 3
    """,
)


def states_of(connection: Connection, dag_run_ids: Collection[int]) -> dict[int, dict[int, dict[int, TaskState]]]:
    """The states of the task instances of each run, by task number and map index."""
    # One row for each state instead of each task instance: a run of ten thousand is read in a third of the time.
    found = prepared.execute(connection, STATES_OF, {"ids": list(dag_run_ids)})
    runs: dict[int, dict[int, dict[int, TaskState]]] = {}
    for row in found:
        states, state = runs.setdefault(row.dag_run_id, {}), TaskState(row.state or "none")
        if row.mapped_no is not None:
            states.setdefault(row.mapped_no, {}).update(dict.fromkeys(row.numbers, state))
            continue
        for task_no in row.numbers:
            states.setdefault(task_no, {})[-1] = state
    return runs
