"""The grid of a DAG: its newest runs, with one character for the state of each task."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import UnreadableVersionError
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.versions import Versions
from scheduler.store.db import rows
from scheduler.store.read.listing import Entries, Filters, Listing, Page

Row = dict[str, Any]
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
