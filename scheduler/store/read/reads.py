"""Queries on DAGs, runs, task instances and import errors, which return plain dicts in the shapes of --json.

Moments are aware datetimes.
"""

import difflib
from collections.abc import Collection
from datetime import UTC, datetime

from sqlalchemy import Connection

from paceline.authoring import timetable
from paceline.exceptions import NotFoundError, no_dag
from paceline.states import DELAYED, FINISHED, HOLDS_SLOTS, States
from scheduler.serialized.dag import params_in_order
from scheduler.serialized.tasks import complete
from scheduler.store.db import rows
from scheduler.store.read.instances import EXECUTED
from scheduler.store.read.listing import Row

#: A task instance in one of these is shown as active: with a worker, or waiting for one again.
SHOWN_ACTIVE = States(HOLDS_SLOTS | DELAYED)
RUN_COLUMNS = """
    r.dag_id, r.run_id, r.run_type, r.logical_date, r.data_interval_start, r.data_interval_end, r.state, r.conf,
    r.queued_at, r.started_at, r.ended_at, r.run_after, r.triggered_by, r.id, v.number as dag_version, r.requested_state,
    case when r.state = 'running' then r.scheduling_error end as scheduling_error
"""
TASK_COLUMNS = """
    r.dag_id, r.run_id, t.task_id, t.map_index, t.map_label, t.state, t.try_number, t.max_tries, t.queue, t.pool, t.pool_slots,
    t.priority_weight, t.worker, t.queued_by, t.scheduled_at, t.queued_at, t.started_at, t.ended_at, t.due_at,
    t.reason, t.id, (select v.number from dag_version v where v.id = {executed}) as dag_version,
    (select p.progress from task_progress p where p.task_instance_id = t.id and p.try_number = t.try_number) as progress
""".format(executed=EXECUTED.format(try_="t"))
#: Seconds before `since` from which `changes` returns ended rows again, because their commit may have been later.
OVERLAP_S = 10


def dags(connection: Connection, *, inactive: bool = False) -> list[Row]:
    """Every active DAG (with `inactive` also those whose file is gone), by ID, with its newest run."""
    found = connection.exec_driver_sql(
        """
        select d.dag_id, d.file, d.is_active, coalesce(s.is_paused, false) as is_paused, v.number as version,
               v.data->>'description' as description, v.data->'schedule' as schedule, v.data->'tags' as tags,
               jsonb_array_length(v.data->'tasks') as task_count, d.parsed_at, s.next_logical_date, s.next_run_after,
               last.run_id as last_run_id, last.state as last_run_state
          from dag d
          join dag_version v on v.id = d.version_id
          left join dag_schedule s on s.dag_id = d.dag_id
          left join lateral (
               select run_id, state from dag_run where dag_id = d.dag_id order by id desc limit 1) last on true
         where d.is_active or %(inactive)s
         order by d.dag_id
        """,
        {"inactive": inactive},
    )
    return [_with_summary(row) for row in rows.dicts(found)]


def dag(connection: Connection, dag_id: str) -> Row:
    """One DAG with its tasks and versions, newest first; also when its file is gone. NotFoundError."""
    row = rows.first_dict(
        connection.exec_driver_sql(
            """
            select d.dag_id, d.file, d.is_active, coalesce(s.is_paused, false) as is_paused, v.number as version,
                   v.data->>'description' as description, v.data->'schedule' as schedule, v.data->'tags' as tags,
                   v.data->>'timezone' as timezone, v.data->>'start_date' as start_date,
                   v.data->>'end_date' as end_date,
                   (v.data->>'catchup')::boolean as catchup, v.max_active_runs, v.max_active_tasks,
                   d.parsed_at, s.next_logical_date, s.next_run_after, v.data->'tasks' as tasks,
                   coalesce(v.data->'params', '{}') as params, coalesce(v.data->'param_order', '[]') as param_order
              from dag d join dag_version v on v.id = d.version_id left join dag_schedule s on s.dag_id = d.dag_id
             where d.dag_id = %(dag_id)s
            """,
            {"dag_id": dag_id},
        )
    )
    if row is None:
        raise _no_dag(connection, dag_id)
    versions = connection.exec_driver_sql(
        """
        select v.number, v.content_hash, v.created_at,
               (select count(*) from dag_run r where r.version_id = v.id) as runs
          from dag_version v where v.dag_id = %(dag_id)s order by v.number desc
        """,
        {"dag_id": dag_id},
    )
    tasks = [complete(task) for task in row["tasks"]]
    order = {"params": row["params"], "param_order": row.pop("param_order")}
    return _with_summary(row) | {
        "params": params_in_order(order),
        "tasks": tasks,
        "task_count": len(tasks),
        "versions": rows.dicts(versions),
    }


def runs(connection: Connection, *, dag_id: str | None = None, state: str | None = None, limit: int | None = None) -> list[Row]:
    """Runs, newest first. NotFoundError if there is no such DAG."""
    if dag_id is not None:
        _require_dag(connection, dag_id)
    found = connection.exec_driver_sql(
        f"""
        select {RUN_COLUMNS}
          from dag_run r join dag_version v on v.id = r.version_id
         where (%(dag_id)s::text is null or r.dag_id = %(dag_id)s) and (%(state)s::text is null or r.state = %(state)s)
         order by r.id desc limit %(limit)s
        """,
        {"dag_id": dag_id, "state": state, "limit": limit},
    )
    return rows.dicts(found)


def run(connection: Connection, dag_id: str, run_id: str) -> Row:
    """One run with `tasks`, its task instances in topological order."""
    found = run_alone(connection, dag_id, run_id)
    return found | {"tasks": _instances(connection, found["id"])}


def task_instances(connection: Connection, dag_id: str, run_id: str) -> list[Row]:
    """The task instances of a run, in topological order."""
    return _instances(connection, run_alone(connection, dag_id, run_id)["id"])


def task_instance(connection: Connection, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> Row:
    """One task instance. NotFoundError names what is missing: DAG, run or task."""
    found = run_alone(connection, dag_id, run_id)
    row = rows.first_dict(
        connection.exec_driver_sql(
            f"""
            select {TASK_COLUMNS} from task_instance t join dag_run r on r.id = t.dag_run_id
             where r.id = %(run)s and t.task_id = %(task_id)s and t.map_index = %(map_index)s
            """,
            {"run": found["id"], "task_id": task_id, "map_index": map_index},
        )
    )
    if row is not None:
        return row
    indexes = connection.exec_driver_sql(
        "select map_index from task_instance where dag_run_id = %s and task_id = %s order by 1", (found["id"], task_id)
    )
    if known := list(indexes.scalars()):
        raise NotFoundError(_no_index(run_id, task_id, map_index, known))
    names = connection.exec_driver_sql(
        "select distinct task_id from task_instance where dag_run_id = %s order by 1", (found["id"],)
    ).scalars()
    raise NotFoundError(
        f"Run {run_id!r} of DAG {dag_id!r} has no task {task_id!r}; "
        + _near(task_id, list(names), f"`paceline tasks list {dag_id} {run_id}` shows all.")
    )


def reason_of_try(connection: Connection, ti_id: int, try_number: int) -> str | None:
    """The reason of the end of a try; None without a reason, or if it has not ended."""
    return connection.exec_driver_sql(
        "select reason from task_instance where id = %(ti)s and try_number = %(number)s and ended_at is not null"
        " union all select reason from task_try where task_instance_id = %(ti)s and try_number = %(number)s limit 1",
        {"ti": ti_id, "number": try_number},
    ).scalar_one_or_none()


def xcoms(connection: Connection, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> list[Row]:
    """The XComs of a task instance, the return value first."""
    found = connection.exec_driver_sql(
        """
        select x.key, x.value, x.created_at
          from xcom x join task_instance t on t.id = x.task_instance_id join dag_run r on r.id = t.dag_run_id
         where r.dag_id = %s and r.run_id = %s and t.task_id = %s and t.map_index = %s
         order by x.key <> 'return_value', x.key
        """,
        (dag_id, run_id, task_id, map_index),
    )
    return rows.dicts(found)


def changes(connection: Connection, dag_id: str, run_id: str, *, since: datetime | None = None) -> Row:
    """The progress of a run, at a cost that does not grow with the task instances that ended long ago.

    `run`; `counts` by state, including "none"; `active`: the task instances that are queued, running or waiting for a retry
    (at most 200); `ended`: those that ended after `since`, oldest first (a few are repeated).
    """
    found = run_alone(connection, dag_id, run_id)
    counts = connection.exec_driver_sql(
        "select coalesce(state, 'none') as state, count(*) as n from task_instance where dag_run_id = %s group by 1", (found["id"],)
    )
    active = connection.exec_driver_sql(
        f"""
        select {TASK_COLUMNS} from task_instance t join dag_run r on r.id = t.dag_run_id
         where t.dag_run_id = %s and t.state in {SHOWN_ACTIVE.sql}
         order by t.started_at nulls last, t.task_no, t.map_index limit 200
        """,
        (found["id"],),
    )
    ended = connection.exec_driver_sql(
        f"""
        select {TASK_COLUMNS} from task_instance t join dag_run r on r.id = t.dag_run_id
         where t.dag_run_id = %(run)s and t.state in {FINISHED.sql}
           and (%(since)s::timestamptz is null or t.ended_at > %(since)s::timestamptz - make_interval(secs => %(overlap)s))
         order by t.ended_at, t.task_no, t.map_index
        """,
        {"run": found["id"], "since": since, "overlap": OVERLAP_S},
    )
    return {
        "run": found,
        "counts": {row.state: row.n for row in counts},
        "active": rows.dicts(active),
        "ended": rows.dicts(ended),
    }


def import_errors(connection: Connection) -> list[Row]:
    """DAG files that could not be parsed, by name."""
    return rows.dicts(connection.exec_driver_sql("select file, line, message, traceback, seen_at from import_error order by file"))


def run_alone(connection: Connection, dag_id: str, run_id: str) -> Row:
    """One run without its task instances. NotFoundError."""
    found = rows.first_dict(
        connection.exec_driver_sql(
            f"""
            select {RUN_COLUMNS} from dag_run r join dag_version v on v.id = r.version_id
             where r.dag_id = %(dag_id)s and r.run_id = %(run_id)s
            """,
            {"dag_id": dag_id, "run_id": run_id},
        )
    )
    if found is not None:
        return found
    _require_dag(connection, dag_id)
    if (of_date := _run_of_date(connection, dag_id, run_id)) is not None:
        raise NotFoundError(f"DAG {dag_id!r} has no run ID {run_id!r}, but a run of this logical date: {of_date!r}.")
    newest = connection.exec_driver_sql(
        "select run_id from dag_run where dag_id = %s order by id desc limit 200", (dag_id,)
    ).scalars()
    raise NotFoundError(
        f"DAG {dag_id!r} has no run {run_id!r}; " + _near(run_id, list(newest), f"`paceline runs list --dag {dag_id}` shows all.")
    )


def _run_of_date(connection: Connection, dag_id: str, text: str) -> str | None:
    """The ID of the run with this logical date; None if there is none, or the text is no time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    found: str | None = connection.exec_driver_sql(
        "select run_id from dag_run where dag_id = %s and logical_date = %s", (dag_id, moment)
    ).scalar_one_or_none()
    return found


def definitions(connection: Connection, dag_id: str, numbers: Collection[int]) -> list[Row]:
    """The definitions of two versions of a DAG, as its files gave them. NotFoundError."""
    found = {
        row.number: row.data
        for row in connection.exec_driver_sql(
            "select number, data from dag_version where dag_id = %s and number = any(%s)", (dag_id, list(numbers))
        )
    }
    for number in numbers:
        if number not in found:
            raise NotFoundError(f"DAG {dag_id!r} has no version {number}; `paceline dags versions {dag_id}` lists all.")
    return [found[number] for number in numbers]


def _instances(connection: Connection, dag_run_id: int) -> list[Row]:
    return rows.dicts(
        connection.exec_driver_sql(
            f"""
            select {TASK_COLUMNS} from task_instance t join dag_run r on r.id = t.dag_run_id
             where t.dag_run_id = %s order by t.task_no, t.map_index
            """,
            (dag_run_id,),
        )
    )


def _no_index(run_id: str, task_id: str, map_index: int, known: list[int]) -> str:
    """`known`: the map indexes that the task has, ascending."""
    if known == [-1]:
        return f"Task {task_id!r} of run {run_id!r} is not mapped, or not expanded yet: remove --map-index."
    mapped = [index for index in known if index >= 0]
    indexes = f"{mapped[0]} to {mapped[-1]}" if len(mapped) > 1 else str(mapped[0])
    if map_index < 0:
        return f"Task {task_id!r} of run {run_id!r} is mapped: choose one of its instances, --map-index {indexes}."
    return f"Task {task_id!r} of run {run_id!r} is mapped and has no instance {map_index}: choose --map-index {indexes}."


def _require_dag(connection: Connection, dag_id: str) -> None:
    known = connection.exec_driver_sql(
        "select exists (select 1 from dag where dag_id = %(dag_id)s) or exists (select 1 from dag_run where dag_id = %(dag_id)s)",
        {"dag_id": dag_id},
    ).scalar_one()
    if not known:
        raise _no_dag(connection, dag_id)


def _no_dag(connection: Connection, dag_id: str) -> NotFoundError:
    known = list(connection.exec_driver_sql("select dag_id from dag order by 1").scalars())
    near = difflib.get_close_matches(dag_id, known, 1)
    return NotFoundError(f"There is no DAG {dag_id!r}; did you mean {near[0]!r}?") if near else no_dag(dag_id)


def _near(name: str, known: list[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _with_summary(row: Row) -> Row:
    return row | {"schedule": timetable.summary(row["schedule"])}
