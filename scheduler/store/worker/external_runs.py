"""Queries of tasks on runs of other DAGs. They use only index probes, because thousands of waiting tasks repeat them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from paceline.authoring.triggers import Counts, Target
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.dags import AFTER, ORDER
from scheduler.store.db.rows import Reader

RUNS = """
select q.place, r.id, r.version_id, r.state
  from unnest(%s::text[], %s::timestamptz[], %s::text[]) with ordinality q (dag_id, logical_date, run_id, place)
 cross join lateral (
       select id, version_id, state from dag_run where dag_id = q.dag_id and logical_date = q.logical_date
       union all
       select id, version_id, state from dag_run where dag_id = q.dag_id and run_id = q.run_id) r
"""
#: Instances of tasks that the version of their run does not have any more.
REMOVED = """
select n.place, t.state, count(*) as instances
  from unnest(%s::int[], %s::bigint[], %s::text[]) n (place, dag_run_id, task_id)
  join task_instance t on t.dag_run_id = n.dag_run_id and t.task_id = n.task_id and t.state = 'removed'
 group by 1, 2
"""
#: A task of a row `w` has this number in the run now. It was `w.task_no` in the version that was read before.
NUMBER = """
coalesce((select k.task_no from task_instance k
           where k.dag_run_id = w.dag_run_id and k.task_id = w.task_id and k.task_no = w.task_no limit 1),
         (select k.task_no from task_instance k where k.dag_run_id = w.dag_run_id and k.task_id = w.task_id limit 1))
"""
INSTANCES = f"""
select w.place, coalesce(t.state, 'none') as state, count(*) as instances
  from unnest(%s::int[], %s::bigint[], %s::int[], %s::text[]) w (place, dag_run_id, task_no, task_id)
  join task_instance t on t.dag_run_id = w.dag_run_id and t.task_no = {NUMBER}
 group by 1, 2
"""
PREVIOUS_SUCCESS = f"""
select b.data_interval_start, b.data_interval_end, b.started_at, b.ended_at
  from dag_run r join dag_run b on b.dag_id = r.dag_id and {AFTER.format("r", "b")} and b.state = 'success'
   and b.run_type <> 'reproduction' and (r.run_type <> 'reproduction' or {ORDER.format("b")} < {ORDER.format("r")})
 where r.id = %s order by {ORDER.format("b")} desc, b.id desc limit 1
"""
PAUSED = "select is_paused from dag_schedule where dag_id = %s"
NEWEST = "select version_id from dag where dag_id = %s and is_active"


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of a target; `place` counts targets from 1."""

    place: int
    id: int
    version_id: int
    state: str


@dataclass(frozen=True, slots=True)
class _Instances:
    """How many task instances of a target have a state; `place` counts targets from 0."""

    place: int
    state: str
    instances: int


@dataclass(frozen=True, slots=True)
class _Success:
    """The data interval, start and end of a successful run."""

    data_interval_start: datetime | None
    data_interval_end: datetime | None
    started_at: datetime | None
    ended_at: datetime | None


def states(connection: Reader, dag_of: Callable[[int], SerializedDag], targets: Sequence[Target]) -> list[Counts]:
    """For each target, the number of its task instances (or runs) by state."""
    runs = connection.objects(
        _Run,
        RUNS,
        ([one.dag_id for one in targets], [one.logical_date for one in targets], [one.run_id for one in targets]),
    )
    answers: list[dict[str, int]] = [{} for _ in targets]
    wanted: list[tuple[int, int, int, str]] = []
    gone: list[tuple[int, int, str]] = []
    for run in runs:
        place = run.place - 1
        task_id, group_id = targets[place].task_id, targets[place].group_id
        if group_id is not None:
            dag = dag_of(run.version_id)
            members = ((no, task.task_id) for no, task in enumerate(dag.tasks) if group_id in _around(task.group, _parents(dag)))
            wanted += [(place, run.id, *member) for member in members]
        elif task_id is None:
            answers[place][run.state] = 1
        elif (task_no := dag_of(run.version_id).number.get(task_id)) is not None:
            wanted.append((place, run.id, task_no, task_id))
        else:
            gone.append((place, run.id, task_id))
    for statement, rows in ((INSTANCES, wanted), (REMOVED, gone)):
        columns = tuple(list(column) for column in zip(*rows, strict=True))
        for one in connection.objects(_Instances, statement, columns) if columns else ():
            answers[one.place][one.state] = answers[one.place].get(one.state, 0) + one.instances
    return list(answers)


def describe(connection: Reader, dag_of: Callable[[int], SerializedDag], dag_id: str) -> dict[str, tuple[str, ...]] | None:
    """The tasks of the newest version of a DAG, each with its task groups; None if there is no such DAG."""
    version_id = connection.value(NEWEST, (dag_id,))
    if version_id is None:
        return None
    dag = dag_of(version_id)
    return {task.task_id: tuple(_around(task.group, _parents(dag))) for task in dag.tasks}


def previous_success(connection: Reader, dag_run_id: int) -> Sequence[datetime | None] | None:
    """The data interval, start and end of the last successful run of the DAG before this run; None if there is none."""
    for run in connection.objects(_Success, PREVIOUS_SUCCESS, (dag_run_id,)):
        return run.data_interval_start, run.data_interval_end, run.started_at, run.ended_at
    return None


def _parents(dag: SerializedDag) -> dict[str, str | None]:
    return {group["group_id"]: group.get("parent") for group in dag.groups}


def _around(group: str | None, parents: dict[str, str | None]) -> list[str]:
    groups: list[str] = []
    while group is not None and group not in groups:
        groups.append(group)
        group = parents.get(group)
    return groups
