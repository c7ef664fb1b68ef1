"""Backfills: what people do with them, and how the scheduler processes them, date by date."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.authoring import params
from paceline.authoring.timetables.base import RunTimes
from paceline.exceptions import BackfillError, ConflictError, NotFoundError, no_dag
from paceline.states import BACKFILL_MAX_ACTIVE_RUNS, REPROCESS, RUN_FINISHED, RUN_UNFINISHED, RunState
from scheduler.serialized.dag import SerializedDag, next_timetable
from scheduler.settings import Core
from scheduler.store.actions import clear, mark
from scheduler.store.dags.versions import Versions
from scheduler.store.db import rows, sqlstates
from scheduler.store.moves.fit import BACKFILL_RANK
from scheduler.store.queueing.limits import OPEN_RUNS_OF_BACKFILL
from scheduler.store.runs import selection
from scheduler.store.runs.selection import Tasks

Row = dict[str, Any]

#: More runs than this are probably a typing error, such as a wrong century. This many take a few seconds to compute.
MOST_RUNS = 20_000

SELECT = """
    select b.id, b.dag_id, case when b.cancelled then 'cancelled' when b.ended_at is not null then 'completed'
           when b.is_paused then 'paused' else 'active' end as state,
           b.from_date, b.to_date, b.max_active_runs, b.reprocess, b.reverse, b.conf, b.created_by, b.created_at, b.ended_at,
           v.number as dag_version, n.*
      from backfill b join dag_version v on v.id = b.version_id
     cross join lateral (
           select count(*) as total, count(*) filter (where o.state = 'waiting') as waiting,
                  count(*) filter (where o.state = 'left_out') as left_out,
                  count(*) filter (where o.state = 'made' and r.state = 'queued') as queued,
                  count(*) filter (where o.state = 'made' and r.state = 'running') as running,
                  count(*) filter (where o.state = 'made' and r.state = 'success') as success,
                  count(*) filter (where o.state = 'made' and r.state = 'failed') as failed
             from backfill_run o left join dag_run r on r.id = o.dag_run_id where o.backfill_id = b.id) n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRequest:
    """A requested backfill: the DAG's runs with logical dates from `first` to `last`, both included."""

    dag_id: str
    first: datetime
    last: datetime
    max_active_runs: int = BACKFILL_MAX_ACTIVE_RUNS
    reprocess: str = "none"
    reverse: bool = False
    #: With None, new runs get no conf, and runs that run again keep theirs.
    conf: dict[str, Any] | None = None
    created_by: str = "cli"
    core: Core = field(default_factory=Core)


@dataclass(frozen=True, slots=True)
class _Place:
    """One planned run of a backfill; `reason` states why it is left out."""

    times: RunTimes
    reason: str | None


def why_left_out(state: str | None, reprocess: str) -> str | None:
    """Why a date is left out, given the state of its run (None: no run); None if the backfill creates or repeats the run."""
    if state is None or state in REPROCESS[reprocess]:
        return None
    return "in flight" if state in RUN_UNFINISHED else f"already has a run ({state})"


def create(connection: Connection, wanted: BackfillRequest) -> Row:
    """Store a backfill with a row for each of its dates; the scheduler creates the runs.

    BackfillError if the request makes no sense for the DAG; ConflictError if a backfill is active, or nothing is to be done.
    """
    version_id, places = _places(connection, wanted)
    try:
        backfill_id = connection.exec_driver_sql(
            """
            insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess, reverse, conf, created_by)
            values (%(dag_id)s, %(version_id)s, %(first)s, %(last)s, %(max_active_runs)s, %(reprocess)s, %(reverse)s, %(conf)s,
                    %(created_by)s)
            on conflict (dag_id) where ended_at is null do nothing returning id
            """,
            asdict(wanted) | {"version_id": version_id, "conf": None if wanted.conf is None else psycopg2.extras.Json(wanted.conf)},
        ).scalar_one_or_none()
    except DataError as error:
        raise BackfillError(sqlstates.unstorable("conf", error)) from None
    if backfill_id is None:
        raise _second(connection, wanted.dag_id)
    connection.exec_driver_sql(
        """
        insert into backfill_run (backfill_id, ordinal, logical_date, data_interval_start, data_interval_end, state, reason)
        select %(id)s, n.ordinal, n.logical_date, n.interval_start, n.interval_end,
               case when n.reason is null then 'waiting' else 'left_out' end, n.reason
          from unnest(%(dates)s::timestamptz[], %(starts)s::timestamptz[], %(ends)s::timestamptz[], %(reasons)s::text[])
               with ordinality n (logical_date, interval_start, interval_end, reason, ordinal)
        """,
        {
            "id": backfill_id,
            "dates": [place.times.logical_date for place in places],
            "starts": [place.times.data_interval_start for place in places],
            "ends": [place.times.data_interval_end for place in places],
            "reasons": [place.reason for place in places],
        },
    )
    return _show(connection, backfill_id)


def dry_run(connection: Connection, wanted: BackfillRequest) -> list[Row]:
    """The rows that `create` would store, one per date, in order. It raises the same errors and changes nothing."""
    _, places = _places(connection, wanted)
    if _active(connection, wanted.dag_id) is not None:
        raise _second(connection, wanted.dag_id)
    return [
        {
            "ordinal": ordinal,
            **{name: getattr(place.times, name) for name in ("logical_date", "data_interval_start", "data_interval_end")},
            "state": "left_out" if place.reason else "waiting",
            "reason": place.reason,
        }
        for ordinal, place in enumerate(places, 1)
    ]


def backfills(connection: Connection, *, dag_id: str | None = None, limit: int | None = None) -> list[Row]:
    """Backfills with the number of their runs in each state, newest first."""
    found = connection.exec_driver_sql(
        f"{SELECT} where %(dag_id)s::text is null or b.dag_id = %(dag_id)s order by b.id desc limit %(limit)s",
        {"dag_id": dag_id, "limit": limit},
    )
    return rows.dicts(found)


def backfill(connection: Connection, backfill_id: int) -> Row:
    """One backfill with `runs`, one row per date, in order. NotFoundError."""
    found = connection.exec_driver_sql(
        """
        select o.ordinal, o.logical_date, o.data_interval_start, o.data_interval_end,
               case when o.state = 'made' then coalesce(r.state, 'deleted') else o.state end as state,
               o.reason, r.run_id, r.started_at, r.ended_at
          from backfill_run o left join dag_run r on r.id = o.dag_run_id where o.backfill_id = %s order by o.ordinal
        """,
        (backfill_id,),
    )
    return _show(connection, backfill_id) | {"runs": rows.dicts(found)}


def pause(connection: Connection, backfill_id: int) -> bool:
    """Stop creating and starting its runs; running ones continue. False if it was paused already."""
    return _set_paused(connection, backfill_id, paused=True)


def resume(connection: Connection, backfill_id: int) -> bool:
    """Resume a paused backfill; False if it was not paused."""
    return _set_paused(connection, backfill_id, paused=False)


def cancel(connection: Connection, backfill_id: int) -> Row:
    """End a backfill: waiting dates are left out, queued runs fail, running ones continue. ConflictError if it has ended."""
    _lock_open(connection, backfill_id)
    connection.exec_driver_sql(
        "update backfill_run set state = 'left_out', reason = 'cancelled' where backfill_id = %s and state = 'waiting'",
        (backfill_id,),
    )
    queued = connection.exec_driver_sql(
        "select id from dag_run where backfill_id = %s and state = 'queued' order by id for no key update", (backfill_id,)
    )
    for key in queued.scalars().all():
        run = selection.lock_run(connection, key)
        if run is not None:
            mark.end_run(connection, run, RunState.FAILED, reason="its backfill was cancelled")
    connection.exec_driver_sql(
        "update backfill set cancelled = true, is_paused = false, ended_at = clock_timestamp() where id = %s", (backfill_id,)
    )
    return _show(connection, backfill_id)


def _places(connection: Connection, wanted: BackfillRequest) -> tuple[int, list[_Place]]:
    """The version of a backfill and its dates in order. Rejects a backfill that is not possible."""
    found = connection.exec_driver_sql(
        "select v.id, v.data, clock_timestamp()"
        " from dag d join dag_version v on v.id = d.version_id where d.dag_id = %s and d.is_active",
        (wanted.dag_id,),
    ).first()
    if found is None:
        raise no_dag(wanted.dag_id)
    version_id, data, now = found
    dag = SerializedDag.from_json(data)
    _check(dag, wanted, now)
    times = _dates(dag, wanted, now)
    runs = connection.exec_driver_sql(
        "select logical_date, state from dag_run where dag_id = %s and logical_date between %s and %s",
        (wanted.dag_id, times[0].logical_date, times[-1].logical_date),
    )
    states = {row.logical_date: row.state for row in runs}
    places = [_Place(one, why_left_out(states.get(one.logical_date), wanted.reprocess)) for one in times]
    if all(place.reason for place in places):
        raise ConflictError(_all_left_out(wanted, places))
    return version_id, places[::-1] if wanted.reverse else places


def _check(dag: SerializedDag, wanted: BackfillRequest, now: datetime) -> None:
    """BackfillError if the backfill makes no sense for this DAG."""
    name = f"DAG {dag.dag_id!r}"
    if dag.allowed_run_types and "backfill" not in dag.allowed_run_types:
        raise BackfillError(f"{name} allows no backfills: its allowed_run_types are {', '.join(dag.allowed_run_types)}.")
    timetable = next_timetable(dag)
    if not timetable.is_periodic:
        raise BackfillError(
            f"{name} has no periodic schedule ({timetable.summary}), so there are no dates to backfill: trigger its runs instead."
        )
    if wanted.first > wanted.last:
        raise BackfillError(f"--from {wanted.first.isoformat()} is later than --to {wanted.last.isoformat()}: swap them.")
    if wanted.first > now:
        raise BackfillError(f"--from {wanted.first.isoformat()} is in the future: a backfill creates runs of past dates.")
    params.check_size(wanted.conf or {}, wanted.core.max_conf_bytes, dag_id=dag.dag_id)
    params.check_names(dag.params, wanted.conf or {}, dag_id=dag.dag_id)
    params.check(dag.params, wanted.conf or {}, dag_id=dag.dag_id, conf_overrides=wanted.core.dag_run_conf_overrides_params)
    past = next((task.task_id for task in dag.tasks if task.depends_on_past), None)
    if past is not None and wanted.reverse:
        raise BackfillError(f"{name} cannot be backfilled in reverse: its task {past!r} depends on the previous run.")
    if past is not None and wanted.reprocess == "none":
        raise BackfillError(
            f"{name} has a task that depends on the previous run ({past!r}), so existing runs must not be left out:"
            " choose --reprocess failed or --reprocess completed."
        )


def _dates(dag: SerializedDag, wanted: BackfillRequest, now: datetime) -> list[RunTimes]:
    """The runs of the range that are due, in order of time; the schedule creates later ones."""
    between = next_timetable(dag).runs_between(wanted.first, min(wanted.last, now), anchor=dag.start)
    span = f"from {wanted.first.isoformat()} to {wanted.last.isoformat()}"
    try:
        times = [one for one in islice(between, MOST_RUNS + 1) if one.run_after <= now]
    except OverflowError:  # a schedule looks at the time before the first moment, too
        raise BackfillError(
            f"DAG {dag.dag_id!r} has no dates {span}, outside of the years 1 to 9999: choose other dates."
        ) from None
    if not times:
        raise BackfillError(f"DAG {dag.dag_id!r} has no run due {span}: choose other dates.")
    if len(times) > MOST_RUNS:
        raise BackfillError(f"DAG {dag.dag_id!r} has more than {MOST_RUNS} runs {span}: choose fewer dates.")
    return times


def _all_left_out(wanted: BackfillRequest, places: Sequence[_Place]) -> str:
    hint = "failed or completed runs them again" if wanted.reprocess == "none" else "choose other dates"
    return (
        f"Nothing to do: each of the {len(places)} dates has a run, which `reprocess` {wanted.reprocess} leaves as it is; {hint}."
    )


def _active(connection: Connection, dag_id: str) -> int | None:
    return connection.exec_driver_sql(
        "select id from backfill where dag_id = %s and ended_at is null", (dag_id,)
    ).scalar_one_or_none()


def _second(connection: Connection, dag_id: str) -> ConflictError:
    active = _active(connection, dag_id)
    return ConflictError(
        f"DAG {dag_id!r} already has an active backfill ({active}): wait for its end, or `paceline backfills cancel {active}`."
    )


def _set_paused(connection: Connection, backfill_id: int, *, paused: bool) -> bool:
    was_paused = _lock_open(connection, backfill_id)
    connection.exec_driver_sql("update backfill set is_paused = %s where id = %s", (paused, backfill_id))
    return was_paused is not paused


def _lock_open(connection: Connection, backfill_id: int) -> bool:
    """Lock an open backfill, and return whether it is paused."""
    row = connection.exec_driver_sql(
        "select is_paused, ended_at, cancelled from backfill where id = %s for no key update", (backfill_id,)
    ).first()
    if row is None:
        raise _no_backfill(backfill_id)
    if row.ended_at is not None:
        raise ConflictError(f"Backfill {backfill_id} {'was cancelled' if row.cancelled else 'has ended'} already.")
    return bool(row.is_paused)


def _show(connection: Connection, backfill_id: int) -> Row:
    row = rows.first_dict(connection.exec_driver_sql(f"{SELECT} where b.id = %s", (backfill_id,)))
    if row is None:
        raise _no_backfill(backfill_id)
    return row


def _no_backfill(backfill_id: int) -> NotFoundError:
    return NotFoundError(f"There is no backfill {backfill_id}: `paceline backfills list` lists all.")


#: Whether a backfill is open, see store/upkeep/pending_work.
PENDING = "exists (select from backfill where ended_at is null)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBackfill:
    """An open backfill, whose row is locked by this process."""

    id: int
    dag_id: str
    version_id: int
    max_active_runs: int
    reprocess: str
    conf: dict[str, Any] | None
    #: False while it or its DAG is paused, or while the DAG's file is missing.
    goes_on: bool


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """A run that a date of a backfill has already."""

    id: int
    state: str


@dataclass(frozen=True, slots=True)
class Date:
    """A date of a backfill that has no run yet."""

    ordinal: int
    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime


def unfinished(connection: Connection) -> list[int]:
    """The backfills that have not ended."""
    return list(connection.exec_driver_sql("select id from backfill where ended_at is null order by id").scalars())


def lock(connection: Connection, backfill_id: int) -> LockedBackfill | None:
    """Lock one backfill; None if it has ended or is locked by another process. Its runs are counted under this lock."""
    held = connection.exec_driver_sql(
        """
        select b.id, b.dag_id, b.version_id, b.max_active_runs, b.reprocess, b.conf,
               not b.is_paused and coalesce(d.is_active and not s.is_paused, false) as goes_on
          from backfill b left join dag d on d.dag_id = b.dag_id left join dag_schedule s on s.dag_id = b.dag_id
         where b.id = %s and b.ended_at is null for no key update of b skip locked
        """,
        (backfill_id,),
    )
    return rows.first(LockedBackfill, held)


def open_runs(connection: Connection, backfill_id: int) -> int:
    """Its runs that are queued or running. This is a separate statement, so that it sees runs created under the previous lock."""
    count = connection.exec_driver_sql(f"select {OPEN_RUNS_OF_BACKFILL} from backfill b where b.id = %s", (backfill_id,))
    return int(count.scalar_one())


def next_date(connection: Connection, backfill_id: int) -> Date | None:
    """The first date that has not been processed."""
    waiting = connection.exec_driver_sql(
        "select ordinal, logical_date, data_interval_start, data_interval_end from backfill_run"
        " where backfill_id = %s and state = 'waiting' order by ordinal limit 1",
        (backfill_id,),
    )
    return rows.first(Date, waiting)


def run_of(connection: Connection, dag_id: str, logical_date: datetime) -> ExistingRun | None:
    """The DAG's run of that date."""
    return rows.first(
        ExistingRun,
        connection.exec_driver_sql("select id, state from dag_run where dag_id = %s and logical_date = %s", (dag_id, logical_date)),
    )


def leave_out(connection: Connection, backfill_id: int, ordinal: int, reason: str) -> None:
    """waiting -> left_out."""
    connection.exec_driver_sql(
        "update backfill_run set state = 'left_out', reason = %s where backfill_id = %s and ordinal = %s",
        (reason, backfill_id, ordinal),
    )


def take(connection: Connection, backfill_id: int, ordinal: int, dag_run_id: int) -> None:
    """waiting -> made: the run, new or cleared, belongs to the backfill from now on."""
    connection.exec_driver_sql(
        """
        with made as (
            update backfill_run set state = 'made', dag_run_id = %(run)s where backfill_id = %(id)s and ordinal = %(ordinal)s
        )
        update dag_run set backfill_id = %(id)s, backfill_ordinal = %(ordinal)s where id = %(run)s
        """,
        {"id": backfill_id, "ordinal": ordinal, "run": dag_run_id},
    )


def repeat(connection: Connection, held: LockedBackfill, date: Date, dag_run_id: int, *, core: Core, versions: Versions) -> bool:
    """success or failed -> queued, with all task instances cleared: the run belongs to the backfill from now on.

    False if the run was cleared concurrently.
    """
    run = clear.lock_run(connection, dag_run_id)
    if run is None or run.state not in RUN_FINISHED:
        return False
    connection.exec_driver_sql(
        "update dag_run set run_type = 'backfill', triggered_by = 'backfill', conf = coalesce(%(conf)s, conf) where id = %(run)s",
        {"run": dag_run_id, "conf": None if held.conf is None else psycopg2.extras.Json(held.conf)},
    )
    take(connection, held.id, date.ordinal, dag_run_id)
    if not clear.clear_locked(connection, replace(run, is_backfill=True), Tasks(), core, versions):
        # There was nothing to clear: all of its task instances are removed, or undecided as after a cancelled backfill.
        clear.queue_again(connection, run, versions.dag(connection, run.version_id))
    connection.exec_driver_sql(
        "update task_instance set rank = priority_weight + %s where dag_run_id = %s", (BACKFILL_RANK, dag_run_id)
    )
    return True


def end(connection: Connection, backfill_id: int) -> None:
    """End a backfill that is complete. It also ends a pause, which must not hold back runs that are cleared later."""
    connection.exec_driver_sql("update backfill set is_paused = false, ended_at = clock_timestamp() where id = %s", (backfill_id,))
