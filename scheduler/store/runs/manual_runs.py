"""Manual runs: triggered by a person, a command, the REST API or a task."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.authoring import params
from paceline.authoring.asset import check_partition_key
from paceline.authoring.timetables.base import Partition
from paceline.exceptions import ConflictError, NotFoundError, PacelineError, no_dag
from scheduler.serialized.dag import SerializedDag, next_timetable
from scheduler.settings import Core
from scheduler.store.dags.versions import Versions
from scheduler.store.db import fencing, prepared, rows, sqlstates
from scheduler.store.db.fencing import Writer
from scheduler.store.moves.first import Limits
from scheduler.store.runs import runs
from scheduler.store.runs.runs import Beginning, CreatedRun, NewRun

DEFAULTS = Core()
#: A run without a given date has that of its creation. If another one has it already, it is that many microseconds later at most.
MICROSECOND, MOST_MOMENTS = timedelta(microseconds=1), 100
#: The key of the run that a task instance has triggered, in its state store.
CHILD = "triggered_run"
#: The allowed characters of a run ID, which becomes a folder name and part of a Celery message. Only dots would be another folder.
RUN_ID = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.~:+-][A-Za-z0-9_.~:+ -]{0,249}")
NEWEST = prepared.of(
    "newest_version",
    {"dag_id": "text"},
    """
    select d.dag_id, d.version_id, e.file, e.line, e.message, clock_timestamp() as now,
           has_any_column_privilege('dag_schedule', 'update') as may_lock_schedules,
           has_any_column_privilege('pool', 'update') and has_table_privilege('event', 'insert') as may_queue
      from dag d left join import_error e on e.file = d.file and d.bundle is null where d.dag_id = %(dag_id)s and d.is_active
    """,
)
REMEMBER = fencing.guarded(
    "insert into task_state (task_instance_id, key, value) select id, %s, %s::json from current"
    " on conflict (task_instance_id, key) do update"
    " set value = excluded.value, updated_at = clock_timestamp(), expires_at = null returning key"
)


def trigger(
    connection: Connection,
    dag_id: str,
    *,
    run_id: str | None = None,
    logical_date: datetime | None = None,
    dated: bool = True,
    conf: dict[str, Any] | None = None,
    triggered_by: str = "cli",
    core: Core = DEFAULTS,
    writer: Writer | None = None,
    max_tries: int | None = None,
    data_interval: tuple[datetime, datetime] | None = None,
    run_after: datetime | None = None,
    partition_key: str | None = None,
    although_broken: bool = False,
    versions: Versions | None = None,
    limits: Limits | None = None,
) -> CreatedRun:
    """Create a manual run of the newest version of the DAG, for `logical_date` or now; `writer` is the try of a task that does.
    With the `max_tries` of that, `child` finds the run.

    With `dated` false, the run has neither a logical date nor a data interval. Without `data_interval`, the timetable gives one.
    The run waits until `run_after`. `partition_key` names its partition. With `limits`, it begins in this transaction if it can
    (see runs.create), and the caller sends its messages and wakes the services after the commit.
    NotFoundError; PacelineError if its file cannot be loaded, unless `although_broken`; ConflictError if the run exists;
    ParamError if `conf` does not fit the params of the DAG; StaleTryError.
    """
    newest = _newest(connection, dag_id)
    dag, now = _allowing_manual(newest, (versions or Versions()).dag(connection, newest.version_id)), newest.now
    if not although_broken:
        _refuse_broken(newest)
    _check_conf(dag, conf := conf or {}, core, by_task=writer is not None)
    partition = None if partition_key is None else Partition(check_partition_key(partition_key), None)
    begins = Beginning(limits if newest.may_queue else None) if limits and newest.may_lock_schedules else None
    for moment in (now + number * MICROSECOND for number in range(MOST_MOMENTS)):
        date = logical_date or moment if dated else None
        own_id = run_id or manual_run_id(date or run_after or moment)
        _check_manual(dag, own_id, date)
        start, end = (data_interval or next_timetable(dag).manual_interval(date)) if date else (None, None)
        new = NewRun(
            dag_id=dag_id, run_id=own_id, run_type="manual", version_id=newest.version_id, logical_date=date,
            data_interval_start=start, data_interval_end=end, run_after=run_after or moment, conf=conf, triggered_by=triggered_by,
            partition=partition,
        )  # fmt: skip
        try:
            created = runs.create(connection, dag, new, default_queue=core.default_queue, beginning=begins)
        except DataError as error:
            raise PacelineError(sqlstates.unstorable("conf", error)) from None
        if created is not None:
            if writer is not None and max_tries is not None:
                remember_child(connection, writer, dag_id, own_id, max_tries=max_tries)
            else:
                fencing.lock(connection, writer)
            return created
        same_id = _exists(connection, dag_id, own_id)
        if date != moment or (same_id and run_id is not None):
            break
    what = f"run ID {own_id!r}" if same_id or date is None else f"logical date {date.isoformat()}"
    raise ConflictError(f"DAG {dag_id!r} already has a run with {what}: choose another.")


def _check_conf(dag: SerializedDag, conf: dict[str, Any], core: Core, *, by_task: bool) -> None:
    """ParamError. A task may give names that are no params, as in Airflow."""
    if not by_task:
        params.check_names(dag.params, conf, dag_id=dag.dag_id)
    params.check_size(conf, core.max_conf_bytes, dag_id=dag.dag_id)
    params.check(dag.params, conf, dag_id=dag.dag_id, conf_overrides=core.dag_run_conf_overrides_params)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """The newest version of a DAG, the import error of its file, the time, and the rights of this role to lock rows."""

    dag_id: str
    version_id: int
    file: str | None
    line: int | None
    message: str | None
    now: datetime
    may_lock_schedules: bool
    may_queue: bool


def _newest(connection: Connection, dag_id: str) -> _Newest:
    """What decides whether the DAG can have a manual run. NotFoundError."""
    newest = rows.first(_Newest, prepared.execute(connection, NEWEST, {"dag_id": dag_id}))
    if newest is None:
        raise no_dag(dag_id)
    return newest


def _allowing_manual(newest: _Newest, dag: SerializedDag) -> SerializedDag:
    """The DAG; PacelineError if it allows no manual runs."""
    if dag.allowed_run_types and "manual" not in dag.allowed_run_types:
        types = ", ".join(dag.allowed_run_types)
        raise PacelineError(f"DAG {newest.dag_id!r} takes no manual runs: its allowed_run_types are {types}.")
    return dag


def _refuse_broken(newest: _Newest) -> None:
    """PacelineError if the file of the DAG has an import error: its tasks would fail."""
    if newest.file is not None:
        place = f"{newest.file}:{newest.line}" if newest.line else newest.file
        message = (newest.message or "").rstrip(".")
        raise PacelineError(f"The file of DAG {newest.dag_id!r} cannot be loaded ({place}: {message}): correct it first.")


def _check_manual(dag: SerializedDag, run_id: str, logical_date: datetime | None) -> None:
    """PacelineError for a date before the start_date of the DAG, or an ID that is not valid."""
    if dag.start is not None and logical_date is not None and logical_date < dag.start:
        raise PacelineError(f"DAG {dag.dag_id!r} starts on {dag.start.isoformat()}: choose a logical date from then on.")
    if not RUN_ID.fullmatch(run_id):
        raise PacelineError(
            f"run ID {run_id!r} is not valid: use 1 to 250 letters, digits, blanks and _.~:+-, no blank first and not only dots."
        )


def manual_run_id(at: datetime) -> str:
    """The default ID of a manual run, by its logical date; without one, by the time from which on it may run."""
    return f"manual__{at.astimezone(UTC).isoformat()}"


def idempotent(connection: Connection, account_id: int, key: str, request: bytes) -> tuple[int | None, bool] | None:
    """Take an idempotency key: None if it is new; otherwise the run of its first request, and whether that was the same request.

    A second request with the same key waits here until the transaction of the first one ends.
    """
    new = connection.exec_driver_sql(
        "insert into idempotent_trigger (account_id, key, request) values (%s, %s, %s) on conflict do nothing returning key",
        (account_id, key, request),
    ).first()
    if new is not None:
        return None
    row = connection.exec_driver_sql(
        "select dag_run_id, request from idempotent_trigger where account_id = %s and key = %s", (account_id, key)
    ).one()
    return row.dag_run_id, bytes(row.request) == request


def made_for(connection: Connection, account_id: int, key: str, dag_run_id: int) -> None:
    """Note the run that a request with an idempotency key made."""
    connection.exec_driver_sql(
        "update idempotent_trigger set dag_run_id = %s where account_id = %s and key = %s", (dag_run_id, account_id, key)
    )


def triggered_by(connection: Connection, dag_id: str, run_id: str) -> str | None:
    """The origin of this run, as given at its creation; None if there is no such run."""
    return connection.exec_driver_sql(
        "select triggered_by from dag_run where dag_id = %s and run_id = %s", (dag_id, run_id)
    ).scalar_one_or_none()


def existing(connection: Connection, dag_id: str, *, run_id: str, logical_date: datetime) -> str:
    """The ID of the run with that ID, else of the run with that logical date. NotFoundError if there is neither."""
    found = connection.exec_driver_sql(
        "select run_id from dag_run where dag_id = %s and (run_id = %s or logical_date = %s) order by run_id = %s desc limit 1",
        (dag_id, run_id, logical_date, run_id),
    ).scalar_one_or_none()
    if found is None:
        raise NotFoundError(f"DAG {dag_id!r} has no run {run_id} any more.")
    return str(found)


def replace_conf(connection: Connection, dag_id: str, run_id: str, conf: dict[str, Any], writer: Writer) -> None:
    """Give an existing run another conf, which `trigger` has checked. StaleTryError."""
    connection.exec_driver_sql(
        "update dag_run set conf = %s where dag_id = %s and run_id = %s", (psycopg2.extras.Json(conf), dag_id, run_id)
    )
    fencing.lock(connection, writer)


@dataclass(frozen=True, slots=True)
class Child:
    """The run of another DAG that a task instance has triggered, since it was last cleared."""

    run_id: str
    state: str
    #: Of the task instance when it triggered the run.
    try_number: int


def child(connection: Connection, writer: Writer, dag_id: str, *, max_tries: int) -> Child | None:
    """The run of `dag_id` that an earlier try, or this one, has triggered; None without one. Clearing changes `max_tries`."""
    row = connection.exec_driver_sql(
        """
        select r.run_id, r.state, (s.value->>'try_number')::int as try_number
          from task_state s join dag_run r on r.dag_id = %s and r.run_id = s.value->>'run_id'
         where s.task_instance_id = %s and s.key = %s and s.value->>'dag_id' = r.dag_id and s.value->>'max_tries' = %s
        """,
        (dag_id, writer.ti_id, CHILD, str(max_tries)),
    ).first()
    return None if row is None else Child(row.run_id, row.state, row.try_number)


def remember_child(connection: Connection, writer: Writer, dag_id: str, run_id: str, *, max_tries: int) -> None:
    """Let `child` find this run, from the commit on. StaleTryError."""
    value = {"dag_id": dag_id, "run_id": run_id, "max_tries": max_tries, "try_number": writer.try_number}
    if connection.exec_driver_sql(REMEMBER, (*writer.key, CHILD, psycopg2.extras.Json(value))).first() is None:
        raise fencing.stale(writer)


def _exists(connection: Connection, dag_id: str, run_id: str) -> bool:
    found = connection.exec_driver_sql("select 1 from dag_run where dag_id = %s and run_id = %s", (dag_id, run_id))
    return found.first() is not None
