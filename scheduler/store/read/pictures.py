"""What the pictures of a run and of a DAG show: grid, timeline, critical path, calendar, applications; and runs beside each
other.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.exceptions import UnreadableVersionError, UsageError
from paceline.states import RUN_FINISHED
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags import schedules
from scheduler.store.dags.versions import Versions
from scheduler.store.db import rows
from scheduler.store.read import bundles, dags
from scheduler.store.read.listing import Entries, Filters, Listing, Page, Row

#: A mapped task with more instances has one bar for all of them.
MOST_BARS = 100
#: Earlier tries of an instance that have bars: the newest ones.
MOST_TRIES = 20
BARS = """
with instance as (
    select t.id, t.task_no, t.task_id, t.map_index, t.state, t.try_number, t.scheduled_at, t.queued_at, t.started_at, t.ended_at,
           t.worker, count(*) over (partition by t.task_no) as instances
      from task_instance t where t.dag_run_id = %(run)s
)
select task_no, task_id, map_index, state, try_number, scheduled_at, queued_at, started_at, ended_at, worker, 1 as instances
  from instance where instances <= %(most)s
union all
select i.task_no, i.task_id, i.map_index, h.state, h.try_number, h.scheduled_at, h.queued_at, h.started_at, h.ended_at, h.worker, 1
  from instance i cross join lateral (
       select * from task_try h where h.task_instance_id = i.id order by h.try_number desc, h.ended_at desc limit %(tries)s) h
 where i.instances <= %(most)s
union all
select task_no, task_id, -1, case when count(*) = count(ended_at) then max(state) end, max(try_number), min(scheduled_at),
       min(queued_at), min(started_at), case when count(*) = count(ended_at) then max(ended_at) end, null, count(*)
  from instance where instances > %(most)s group by 1, 2
 order by task_no, map_index, try_number
"""
#: Planned runs are those of the next days, and the first of many.
PLANNED_DAYS, MOST_PLANNED = 7, 400
#: The character of each state, with those that most task instances have first.
CODES = {
    "success": "s", "none": ".", "skipped": "k", "failed": "f", "upstream_failed": "u", "scheduled": "c", "queued": "q",
    "running": "r", "up_for_retry": "y", "up_for_reschedule": "e", "deferred": "d", "shutdown": "t", "removed": "x",
}  # fmt: skip
#: The character of a task that a run does not have.
ABSENT = " "
#: The state of a mapped task is the first of these that one of its instances has.
WORST_FIRST = (
    "failed", "upstream_failed", "shutdown", "up_for_retry", "running", "queued", "scheduled", "up_for_reschedule", "deferred",
    "none", "success", "skipped", "removed",
)  # fmt: skip
CASES = " ".join(f"when '{state}' then '{code}'" for state, code in CODES.items() if state != "none")
CODE = f"case t.state {CASES} else '.' end"
RUNS = Listing(
    columns="""
        r.id, r.dag_id, r.run_id, r.run_type, r.state, r.logical_date, r.run_after, r.started_at, r.ended_at, r.version_id,
        v.number as version_number
    """,
    tables="dag_run r join dag_version v on v.id = r.version_id",
    orders={"run_after": "r.run_after"},
    filtered={"dag_id": "r.dag_id", "run_id": "r.run_id", "run_type": "r.run_type", "state": "r.state"},
    default_order=("-run_after",),
    key="r.id",
)
#: The index has the tasks of one run in order: asked for all runs at once, PostgreSQL sorts all their tasks on disk.
CELLS = f"""
select w.id as dag_run_id, c.states, c.tries, c.numbers from unnest(%s::bigint[]) w (id) cross join lateral (
       select string_agg({CODE}, '' order by t.task_no) as states,
              jsonb_object_agg(t.task_no, t.try_number) filter (where t.try_number > 1) as tries,
              case when count(*) <= max(t.task_no) then array_agg(t.task_no order by t.task_no) end as numbers
         from task_instance t where t.dag_run_id = w.id and t.map_index < 0 having count(*) > 0) c
"""
MAPPED = """
select t.dag_run_id, t.task_no, coalesce(t.state, 'none') as state, count(*) as count, max(t.try_number) as try_number
  from task_instance t where t.dag_run_id = any(%s) and t.map_index >= 0 group by 1, 2, 3
"""
#: One probe of an index for each DAG, however many runs it has.
RECENT = """
select n.* from unnest(%(dags)s::text[]) w (dag_id) cross join lateral (
       select r.dag_id, r.run_id, r.run_type, r.state, r.run_after, r.started_at, r.ended_at from dag_run r
        where r.dag_id = w.dag_id order by r.run_after desc, r.id desc limit %(limit)s) n
"""


def bars(connection: Connection, dag_run_id: int) -> list[Row]:
    """The newest tries of the task instances of a run, in topological order."""
    return rows.dicts(connection.exec_driver_sql(BARS, {"run": dag_run_id, "most": MOST_BARS, "tries": MOST_TRIES}))


def first_failure(connection: Connection, dag_run_id: int) -> Row | None:
    """The task instance of a run that failed first, with the number of all that failed; None if none did."""
    found = connection.exec_driver_sql(
        """
        select r.dag_id, r.run_id, t.task_id, t.map_index, t.state, t.try_number, t.ended_at, t.reason, count(*) over () as failed
          from task_instance t join dag_run r on r.id = t.dag_run_id
         where t.dag_run_id = %s and t.state = 'failed' order by t.ended_at, t.id limit 1
        """,
        (dag_run_id,),
    )
    return next(iter(rows.dicts(found)), None)


def critical_path(dag: SerializedDag, bars: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tasks that decided how long the run took, the first one first: each is the upstream task that ended last."""
    ended: dict[str, datetime] = {}
    for bar in bars:
        at = bar["ended_at"] or bar["started_at"]
        if at is not None and bar["task_id"] in dag.number:
            ended[bar["task_id"]] = max(at, ended.get(bar["task_id"], at))
    path: list[str] = []
    near = list(ended)
    while near:
        last = max(near, key=lambda name: (ended[name], dag.number[name]))
        path.append(last)
        near = [name for name in dag.tasks[dag.number[last]].upstream if name in ended]
    return path[::-1]


def days_and_hours(connection: Connection, dag_id: str, *, days: int, zone: str) -> tuple[list[Row], list[Row]]:
    """The number of runs by day and state, and by hour of the day and state: of the last `days` days. UsageError."""
    zone_of(zone)
    try:
        found = connection.exec_driver_sql(
            """
            select day, hour, state, count(*) as count
              from (select (l.at)::date as day, extract(hour from l.at)::int as hour, r.state from dag_run r
                     cross join lateral (select coalesce(r.logical_date, r.run_after) at time zone %(zone)s as at) l
                     where r.dag_id = %(dag_id)s and r.run_after >= statement_timestamp() - make_interval(days => %(days)s)) r
             group by grouping sets ((day, state), (hour, state)) order by 1, 2
            """,
            {"dag_id": dag_id, "days": days, "zone": zone},
        )
    except DataError as error:
        raise _no_zone(zone) from error
    counted = rows.dicts(found)
    return [row for row in counted if row["day"] is not None], [row for row in counted if row["hour"] is not None]


def planned(connection: Connection, dag_id: str, *, zone: str) -> tuple[list[Row], bool]:
    """The number of planned runs of each day, and whether there are too many to count. UsageError, NotFoundError."""
    here = zone_of(zone)
    due = schedules.upcoming(connection, dag_id, count=MOST_PLANNED, within=timedelta(days=PLANNED_DAYS))
    by_day = Counter(run.run_after.astimezone(here).date() for run in due)
    return [{"day": day, "count": count} for day, count in sorted(by_day.items())], len(due) == MOST_PLANNED


def zone_of(name: str) -> ZoneInfo:
    """The time zone with this name. UsageError."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise _no_zone(name) from error


def _no_zone(name: str) -> UsageError:
    return UsageError(f"There is no time zone {name[:100]!r}: give a name such as Europe/Berlin.")


def applications(connection: Connection, ti_id: int) -> Row:
    """`progress` of the newest try with the time of the report, and `applications`, the oldest first."""
    progress = connection.exec_driver_sql(
        "select p.progress, p.seen_at from task_progress p join task_instance t on t.id = p.task_instance_id"
        " where t.id = %s and p.try_number = t.try_number",
        (ti_id,),
    )
    found = connection.exec_driver_sql(
        """
        select try_number, kind, deploy_mode, master, application_id, driver_id, ui_url, state, detail, submitted_at, ended_at
          from external_job where task_instance_id = %s order by id
        """,
        (ti_id,),
    )
    report = rows.first_dict(progress) or {"progress": None, "seen_at": None}
    return report | {"applications": rows.dicts(found)}


def recent(connection: Connection, dag_ids: Collection[str], limit: int) -> dict[str, list[Row]]:
    """The newest runs of each of these DAGs, the newest first."""
    found: dict[str, list[Row]] = {}
    for row in rows.dicts(connection.exec_driver_sql(RECENT, {"dags": list(dag_ids), "limit": limit})):
        found.setdefault(row["dag_id"], []).append(row)
    return found


def grid(
    connection: Connection, filters: Filters, page: Page, shown: SerializedDag, versions: Versions
) -> tuple[Entries, list[Row]]:
    """One page of runs, the newest first, and their cells.

    `states` has one character for each task of `shown`; `tries` and `mapped` have what is not 1 or not one instance, by the index
    of the task.
    """
    found = RUNS.page(connection, filters, page)
    keys = [run["id"] for run in found.rows]
    cells = {row["dag_run_id"]: row for row in rows.dicts(connection.exec_driver_sql(CELLS, (keys,)))}
    places = {number: _places(connection, number, shown, versions) for number in {run["version_id"] for run in found.rows}}
    mapped: dict[int, dict[int, Row]] = {}
    for row in rows.dicts(connection.exec_driver_sql(MAPPED, (keys,))):
        cell = mapped.setdefault(row["dag_run_id"], {}).setdefault(row["task_no"], {"counts": {}, "try_number": 1})
        cell["counts"][row["state"]] = row["count"]
        cell["try_number"] = max(cell["try_number"], row["try_number"])
    size = len(shown.tasks)
    return found, [
        _run(run, places[run["version_id"]], cells.get(run["id"]), mapped.get(run["id"], {}), size) for run in found.rows
    ]


def _places(connection: Connection, version_id: int, shown: SerializedDag, versions: Versions) -> Sequence[int | None]:
    """By task_no of a version: the index of the task in the DAG that is shown."""
    try:
        dag = versions.dag(connection, version_id)
    except UnreadableVersionError:
        return ()
    return [shown.number.get(task.task_id) for task in dag.tasks]


def _run(run: Row, places: Sequence[int | None], cells: Row | None, mapped: dict[int, Row], size: int) -> Row:
    states = "" if cells is None else cells["states"]
    numbers: Iterable[int] = range(len(states)) if cells is None or cells["numbers"] is None else cells["numbers"]
    # Nearly all runs have the version that is shown, and no mapped task.
    if not mapped and len(states) == size and list(places) == list(range(size)) and numbers == range(size):
        line = states
    else:
        line = _line(states, numbers, mapped, places, size)
    tries = {int(number): tried for number, tried in ((cells and cells["tries"]) or {}).items()}
    tries |= {number: cell["try_number"] for number, cell in mapped.items() if cell["try_number"] > 1}
    return run | {
        "states": line,
        "tries": _at(places, tries),
        "mapped": _at(places, {number: cell["counts"] for number, cell in mapped.items()}),
    }


def _line(states: str, numbers: Iterable[int], mapped: dict[int, Row], places: Sequence[int | None], size: int) -> str:
    line = [ABSENT] * size
    codes = dict(zip(numbers, states, strict=True))
    codes |= {number: CODES[next(state for state in WORST_FIRST if state in cell["counts"])] for number, cell in mapped.items()}
    for place, code in _at(places, codes).items():
        line[place] = code
    return "".join(line)


def _at(places: Sequence[int | None], values: dict[int, Any]) -> dict[int, Any]:
    """Values by the index of the task that is shown, instead of by task_no."""
    return {place: value for number, value in values.items() if number < len(places) and (place := places[number]) is not None}


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
