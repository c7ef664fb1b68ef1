"""DAG runs."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from paceline.states import RunState
from scheduler.api.models.base import Body, CursorPage, Model, Moment, Note, Version, from_row, with_bounds

#: The value of triggered_by in Airflow, by the part before the colon in the one that Paceline stores.
MADE_BY = {"cli": "cli", "demo": "cli", "schedule": "timetable", "backfill": "backfill", "asset": "asset", "api": "rest_api"}


class DagRun(Model):
    """A run of a DAG."""

    dag_run_id: str = from_row("run_id")
    dag_id: str
    dag_display_name: str = from_row("dag_id")
    run_type: str
    state: RunState
    triggered_by: str | None
    triggering_user_name: str | None = None
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    run_after: datetime
    queued_at: datetime | None
    start_date: datetime | None = from_row("started_at")
    end_date: datetime | None = from_row("ended_at")
    duration: float | None
    last_scheduling_decision: datetime | None = from_row("examined_at")
    conf: dict[str, Any] | None
    note: str | None
    dag_versions: list[Version]
    bundle_version: str | None = None
    partition_key: str | None = None
    partition_date: datetime | None = None
    #: The state with which the run ends once its teardowns have ended, because it was marked or took too long.
    requested_state: RunState | None = None
    #: Why the schedulers cannot decide a running run.
    scheduling_error: str | None = None
    #: Of a reproduction: the ID of its original, which may be deleted.
    reproduction_of: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: Any) -> Any:
        if not isinstance(row, dict) or "version_id" not in row:
            return row
        kind, _, user = (row["triggered_by"] or "").partition(":")
        return row | {
            "triggered_by": MADE_BY.get(kind, "operator" if row["triggered_by"] else None),
            "triggering_user_name": user or None,
            # The current one is the last; a run may return to an earlier one.
            "dag_versions": [one for one in row["earlier_versions"] or () if one["version_id"] != row["version_id"]] + [row],
        }


class DagRunPage(CursorPage):
    """A page of runs."""

    dag_runs: list[DagRun]


class TriggerBody(Body):
    """A new manual run."""

    dag_run_id: str | None = None
    #: If it is left out, now. With null, the run has neither a logical date nor a data interval.
    logical_date: Moment | None = None
    data_interval_start: Moment | None = None
    data_interval_end: Moment | None = None
    run_after: Moment | None = None
    conf: dict[str, Any] | None = None
    note: Note | None = None
    partition_key: str | None = None

    @property
    def is_undated(self) -> bool:
        return "logical_date" in self.model_fields_set and self.logical_date is None


class DagRunPatch(Body):
    """A change of a run."""

    state: Literal["queued", "success", "failed"] | None = None
    note: Note | None = None


class DagRunClear(Body):
    """Which task instances of a run to clear."""

    dry_run: bool = True
    only_failed: bool = False
    only_new: bool = False
    run_on_latest_version: bool | None = None
    note: Note | None = None


class ReproductionBody(Body):
    """A reproduction of a run."""

    dry_run: bool = True
    #: Keep its tables until its run is deleted.
    keep: bool = False
    #: Columns that the comparison of rows leaves out.
    ignore: list[Annotated[str, StringConstraints(min_length=1, max_length=250)]] = Field([], max_length=100)
    #: Also run tasks again that are known to do more than write tables.
    despite_effects: bool = False


class ReproductionPlan(Model):
    """What a reproduction would do."""

    version_number: int
    #: The run moved to this version while it ran: its earlier tasks executed other code.
    moved: bool
    #: What its tasks would do again beside writing tables, as far as the DAG tells.
    effects: list[str]


class ReproducedTable(Model):
    """A table that a run or its reproduction has published. Without rows and checksums, they could not be compared."""

    table: str
    is_equal: bool
    schema_equal: bool
    rows_equal: bool
    checksum_equal: bool
    original_rows: int | None
    reproduced_rows: int | None
    original_checksum: str | None
    reproduced_checksum: str | None
    columns_that_differ: list[str]
    note: str


class ReproducedInput(Model):
    """A table that a task of a reproduction has read in another state than that of the original, or only one of them has read."""

    task_id: str
    map_index: int
    table: str
    original_publication: int | None
    reproduced_publication: int | None


class Reproduction(Model):
    """A reproduction beside its original."""

    dag_run_id: str = from_row("run_id")
    dag_id: str
    state: RunState
    start_date: datetime | None = from_row("started_at")
    end_date: datetime | None = from_row("ended_at")
    original_run_id: str | None
    original_state: RunState | None
    keep: bool
    #: The namespace of its tables, until they are deleted.
    namespace: str | None
    ignored: list[str]
    #: `pending` until its run ends, `comparing` until its tables are read. `unknown` has a reason.
    verdict: Literal["pending", "comparing", "equal", "different", "unknown"]
    reason: str | None
    tables: list[ReproducedTable]
    inputs: list[ReproducedInput]


class Reproductions(Model):
    """The newest reproductions of a run, or the one that it is."""

    reproductions: list[Reproduction]


class DagRunRef(DagRunPatch):
    """A run in a bulk request."""

    dag_run_id: str
    dag_id: str | None = None


class DagRunsClear(DagRunClear):
    """Several runs to clear."""

    dag_runs: list[DagRunRef] | None = None
    partition_key: str | None = None
    partition_date_start: Moment | None = None
    partition_date_end: Moment | None = None


class DagRunsFilter(with_bounds("run_after", "logical_date", "start_date", "end_date", "duration")):  # type: ignore[misc]
    """A list of runs by filters in the body."""

    order_by: str | None = None
    page_offset: int = Field(0, ge=0)
    page_limit: int = Field(100, ge=0)
    dag_ids: list[str] | None = None
    states: list[RunState | None] | None = None
    conf_contains: str | None = None
