"""What traces and lineage need beside events: how versions were parsed, work on Spark, DataFrames, and nominal times of runs."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from scheduler.store.db import rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """When a version was stored, and how long its file took to parse, in seconds; None if the file is gone."""

    id: int
    number: int
    stored_at: float
    duration_s: float | None
    file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWork:
    """The progress of the last try of a task, and the application that it submitted, if any. Times are seconds since 1970."""

    task_instance_id: int
    progress: dict[str, Any] | None
    application_id: str | None
    master: str | None
    state: str | None
    submitted_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """The nominal times of a run, as ISO 8601."""

    id: int
    nominal_from: str | None
    nominal_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """An XCom with a reference to a DataFrame."""

    task_instance_id: int
    dag_run_id: int
    task_id: str
    key: str
    value: Any


def parsed(connection: Connection, version_id: int) -> Parsed | None:
    """How a version came to be."""
    found = connection.exec_driver_sql(
        """
        select v.id, v.number, extract(epoch from v.created_at)::float8 as stored_at, f.duration_s, f.path as file
          from dag_version v left join dag d on d.dag_id = v.dag_id left join dag_file f on f.path = d.file and d.bundle is null
         where v.id = %s
        """,
        (version_id,),
    )
    return rows.first(Parsed, found)


def spark_work(connection: Connection, tries: Collection[tuple[int, int]]) -> list[SparkWork]:
    """The work on Spark of these tries (task instance and number)."""
    found = connection.exec_driver_sql(
        """
        select n.id as task_instance_id, p.progress, j.application_id, j.master, j.state,
               extract(epoch from j.submitted_at)::float8 as submitted_at, extract(epoch from j.ended_at)::float8 as ended_at
          from unnest(%s::bigint[], %s::int[]) n (id, try_number)
          left join task_progress p on p.task_instance_id = n.id and p.try_number = n.try_number
          left join external_job j on j.task_instance_id = n.id and j.try_number = n.try_number
         where p.task_instance_id is not null or j.id is not null
        """,
        ([ti for ti, _ in tries], [number for _, number in tries]),
    )
    return rows.of_result(SparkWork, found)


def run_times(connection: Connection, run_ids: Collection[int]) -> dict[int, RunTimes]:
    """The nominal times of these runs: those of the data interval, or the logical date."""
    found = connection.exec_driver_sql(
        """
        select id, to_char(coalesce(data_interval_start, logical_date) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                   as nominal_from,
               to_char(data_interval_end at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as nominal_to
          from dag_run where id = any(%s)
        """,
        (list(run_ids),),
    )
    return {one.id: one for one in rows.of_result(RunTimes, found)}


def frames(connection: Connection, run_id: int, task_ids: Collection[str]) -> list[Returned]:
    """The references to DataFrames that these tasks of a run have returned."""
    found = connection.exec_driver_sql(
        """
        select t.id as task_instance_id, t.dag_run_id, t.task_id, x.key, x.value
          from task_instance t join xcom x on x.task_instance_id = t.id
         where t.dag_run_id = %s and t.task_id = any(%s) and x.value::text like '%%"__dataframe__"%%'
         order by t.id, x.key limit 200
        """,
        (run_id, list(task_ids)),
    )
    return rows.of_result(Returned, found)
