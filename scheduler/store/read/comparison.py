"""Runs of a DAG beside each other: two runs with their tasks and XComs, and the first version whose runs fail."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from paceline.states import RUN_FINISHED
from scheduler.store.db import rows
from scheduler.store.read import bundles, dags
from scheduler.store.read.listing import Row

#: XComs that differ in one answer, and the characters of each value.
MOST_XCOMS, LONGEST_VALUE = 200, 600
#: Runs that one can be compared with in one answer.
MOST_OTHERS = 25
LAST_SUCCESS = """
select r.run_id from dag_run r
 where r.dag_id = %(dag_id)s and r.state = 'success' and (r.run_after, r.id) < (%(run_after)s, %(id)s)
 order by r.run_after desc, r.id desc limit 1
"""
OTHERS = """
select r.run_id, r.run_type, r.state, r.run_after, r.started_at, r.ended_at from dag_run r
 where r.dag_id = %(dag_id)s and r.id <> %(id)s order by r.run_after desc, r.id desc limit %(most)s
"""
#: By run, task and state: the instances of a mapped task together.
TASKS = """
select t.dag_run_id, t.task_no, t.task_id, coalesce(t.state, 'none') as state, count(*) as instances, max(t.try_number) as tries,
       sum(extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at))::float as seconds,
       sum(extract(epoch from t.started_at - coalesce(t.scheduled_at, t.queued_at)))::float as waited
  from task_instance t where t.dag_run_id = any(%s) group by 1, 2, 3, 4
"""
XCOMS = """
select task_id, map_index, key, left(n.value, %(longest)s) as now, left(b.value, %(longest)s) as before
  from (select t.task_id, t.map_index, x.key, x.value::text as value
          from task_instance t join xcom x on x.task_instance_id = t.id where t.dag_run_id = %(run)s) n
  full join (select t.task_id, t.map_index, x.key, x.value::text as value
          from task_instance t join xcom x on x.task_instance_id = t.id where t.dag_run_id = %(other)s) b
       using (task_id, map_index, key)
 where n.value is distinct from b.value order by 1, 2, 3 limit %(most)s
"""
#: `newest_state` is NULL for a version without a run that has ended.
VERSIONS = f"""
    select v.number as version_number, v.created_at, v.bundle_version_id, b.bundle as bundle_name, b.number as bundle_version,
           b.message, b.origin, b.created_by, r.success_count, r.failed_count, r.newest_run_id, r.newest_state
      from dag_version v left join bundle_version b on b.id = v.bundle_version_id
     cross join lateral (
        select count(*) filter (where state = 'success') as success_count, count(*) filter (where state = 'failed') as failed_count,
               (array_agg(run_id order by ended_at desc, id desc))[1] as newest_run_id,
               (array_agg(state order by ended_at desc, id desc))[1] as newest_state
          from dag_run where version_id = v.id and state in {RUN_FINISHED.sql}) r
     where v.dag_id = %s order by v.number
"""


def last_success(connection: Connection, run: Row) -> str | None:
    """The ID of the newest run before this one that succeeded."""
    return next(iter(connection.exec_driver_sql(LAST_SUCCESS, _place(run)).scalars()), None)


def others(connection: Connection, run: Row) -> list[Row]:
    """The newest other runs of its DAG, the newest first."""
    return rows.dicts(connection.exec_driver_sql(OTHERS, _place(run) | {"most": MOST_OTHERS}))


def tasks(connection: Connection, run: int, other: int) -> list[Row]:
    """Each task of the two runs, in the order of the newer version, with its states, tries and seconds in both."""
    sides: dict[str, dict[str, Row]] = {}
    order: dict[str, tuple[bool, int]] = {}
    for row in rows.dicts(connection.exec_driver_sql(TASKS, ([run, other],))):
        name = "now" if row["dag_run_id"] == run else "before"
        side = sides.setdefault(row["task_id"], {}).setdefault(name, {"states": {}, "tries": 0, "seconds": None, "waited": None})
        side["states"][row["state"]] = row["instances"]
        side["tries"] = max(side["tries"], row["tries"])
        for measure in ("seconds", "waited"):
            side[measure] = _sum(side[measure], row[measure])
        if name == "now" or row["task_id"] not in order:
            order[row["task_id"]] = (name != "now", row["task_no"])
    return [
        {"task_id": task_id, "now": sides[task_id].get("now"), "before": sides[task_id].get("before")}
        for task_id in sorted(sides, key=lambda task_id: order[task_id])
    ]


def xcoms(connection: Connection, run: int, other: int) -> list[Row]:
    """The first MOST_XCOMS XComs that only one of two runs has, or whose values differ, as JSON."""
    parameters = {"run": run, "other": other, "longest": LONGEST_VALUE, "most": MOST_XCOMS}
    return rows.dicts(connection.exec_driver_sql(XCOMS, parameters))


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[Row]:
    """The names whose values differ. A name that is missing has the value None."""
    names = list(dict.fromkeys([*now, *before]))
    changed = (name for name in names if name not in now or name not in before or now[name] != before[name])
    return [{"name": name, "now": now.get(name), "before": before.get(name)} for name in changed]


def _place(run: Row) -> Row:
    return {name: run[name] for name in ("dag_id", "run_after", "id")}


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def bisect(connection: Connection, dag_id: str) -> dict[str, Any]:
    """Find the first version since which each version's newest run has failed. NotFoundError if there is no such DAG.

    Returns it as `first_failing` (None: the newest version that has run succeeds, or none has run), `last_good` before it, the
    numbers of the versions in between, which have no run that has ended, as `untested`, the `files` of the bundle that differ
    between the two, and all `versions`.
    """
    dags.dag(connection, dag_id)
    versions = rows.dicts(connection.exec_driver_sql(VERSIONS, (dag_id,)))
    good, failing = _turn(versions)
    files = None
    if failing is not None and good is not None and failing["bundle_version_id"] and good["bundle_version_id"]:
        files = bundles.changes(connection, failing["bundle_version_id"], good["bundle_version_id"])["files"]
    since = good["version_number"] if good is not None else 0
    numbers = [row["version_number"] for row in versions]
    untested = [] if failing is None else [number for number in numbers if since < number < failing["version_number"]]
    return {
        "dag_id": dag_id, "first_failing": failing, "last_good": good, "untested": untested, "files": files, "versions": versions,
    }  # fmt: skip


def _turn(versions: Iterable[Row]) -> tuple[Row | None, Row | None]:
    """The newest version whose newest run succeeded, and the first one after it whose newest run failed."""
    good = failing = None
    for row in versions:
        if row["newest_state"] == "success":
            good, failing = row, None
        elif row["newest_state"] == "failed":
            failing = failing or row
    return good, failing
