"""DAGs, their tasks, versions and statistics."""

import base64
from datetime import datetime, timedelta
from typing import Any

from pydantic import Field, model_validator

from scheduler.api.models.base import Body, Model, Page, Version, from_row


class Tag(Model):
    """A tag of a DAG."""

    name: str
    dag_id: str
    dag_display_name: str


class Dag(Model):
    """A DAG as a list shows it."""

    dag_id: str
    dag_display_name: str = from_row("dag_id")
    is_paused: bool
    is_stale: bool
    last_parsed_time: datetime | None = from_row("file_parsed_at")
    last_parse_duration: float | None = from_row("parse_duration_s")
    last_expired: datetime | None = None
    bundle_name: str | None = "dags-folder"
    bundle_version: str | None = None
    relative_fileloc: str | None = from_row("file")
    fileloc: str
    file_token: str
    description: str | None
    timetable_summary: str | None
    timetable_description: str | None
    timetable_partitioned: bool = False
    timetable_periodic: bool
    tags: list[Tag]
    max_active_tasks: int
    max_active_runs: int | None
    max_consecutive_failed_dag_runs: int
    has_task_concurrency_limits: bool = False
    has_import_errors: bool
    next_dagrun_logical_date: datetime | None = from_row("next_logical_date")
    next_dagrun_data_interval_start: datetime | None = from_row("next_interval_start")
    next_dagrun_data_interval_end: datetime | None = from_row("next_interval_end")
    next_dagrun_run_after: datetime | None = from_row("next_run_after")
    allowed_run_types: list[str] | None
    owners: list[str] = Field(default_factory=list)
    is_backfillable: bool
    #: An addition of Paceline to lists.
    is_favorite: bool = False

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        spec = row["spec"]
        return {
            "description": spec.get("description"),
            "owners": spec.get("owners") or (),
            "max_consecutive_failed_dag_runs": spec.get("max_consecutive_failed_dag_runs", 0),
            "allowed_run_types": list(spec.get("allowed_run_types") or ()) or None,
            "tags": [{"name": tag, "dag_id": row["dag_id"], "dag_display_name": row["dag_id"]} for tag in spec.get("tags", ())],
            "is_stale": not row["is_active"],
            "file_token": file_token(row["file"]),
        } | row


class DagDetails(Dag):
    """A DAG with its settings."""

    catchup: bool
    concurrency: int = from_row("max_active_tasks")
    dag_run_timeout: timedelta | None
    start_date: datetime | None
    end_date: datetime | None
    timezone: str | None
    params: dict[str, Any] | None
    default_args: dict[str, Any] | None = None
    doc_md: str | None = None
    asset_expression: dict[str, Any] | None
    is_paused_upon_creation: bool | None
    render_template_as_native_obj: bool = False
    rerun_with_latest_version: bool | None
    template_search_path: list[str] | None = None
    owner_links: dict[str, str] | None = None
    last_parsed: datetime | None = from_row("parsed_at")
    active_runs_count: int
    latest_dag_version: Version | None

    @model_validator(mode="before")
    @classmethod
    def _details(cls, row: dict[str, Any]) -> dict[str, Any]:
        spec = row["spec"]
        timeout_s = spec.get("dagrun_timeout_s")
        return {
            **{name: spec.get(name) for name in (
                "start_date", "end_date", "timezone", "doc_md", "is_paused_upon_creation", "rerun_with_latest_version",
            )},
            "catchup": bool(spec.get("catchup")),
            "params": spec.get("params") or {},
            "asset_expression": (spec.get("schedule") or {}).get("condition"),
            "dag_run_timeout": None if timeout_s is None else timedelta(seconds=timeout_s),
            "latest_dag_version": row,
        } | row  # fmt: skip


class DagPage(Page):
    """A page of DAGs."""

    dags: list[Dag]


class DagPatch(Body):
    """A change of a DAG."""

    is_paused: bool


class TagPage(Page):
    """A page of tags."""

    tags: list[str]


class StateCount(Model):
    """How many runs are in a state."""

    state: str
    count: int


class DagStats(Model):
    """How many runs of a DAG are in each state."""

    dag_id: str
    dag_display_name: str
    stats: list[StateCount]


class DagStatsPage(Page):
    """The numbers of runs of DAGs."""

    dags: list[DagStats]


class DagWarning(Model):
    """Something wrong with a DAG that loads."""

    dag_id: str
    dag_display_name: str
    warning_type: str
    message: str
    timestamp: datetime


class DagWarningPage(Page):
    """A page of warnings."""

    dag_warnings: list[DagWarning]


class VersionPage(Page):
    """A page of versions."""

    dag_versions: list[Version]


class DagSource(Model):
    """The source of a DAG file."""

    content: str | None
    dag_id: str
    dag_display_name: str
    version_number: int | None
    bundle_name: str
    #: The version of its bundle, whose files runs of this version execute; null: they execute the DAGs folder as it stands.
    bundle_version: str | None
    #: Whether this is the file as it is now, and not the text that was kept when the version was stored.
    is_file_now: bool


class ImportError_(Model):
    """A DAG file that cannot be read."""

    import_error_id: int = from_row("number")
    timestamp: datetime = from_row("seen_at")
    filename: str = from_row("file")
    bundle_name: str | None = "dags-folder"
    stack_trace: str

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"stack_trace": row["traceback"] or row["message"]}


class ImportErrorPage(Page):
    """A page of import errors."""

    import_errors: list[ImportError_]


class Duration(Model):
    """A duration, in the form of Airflow."""

    type_: str = Field("TimeDelta", serialization_alias="__type")
    days: int
    seconds: int
    microseconds: int


class Task(Model):
    """A task of a DAG."""

    task_id: str
    task_display_name: str
    owner: str | None = None
    start_date: datetime | None
    end_date: datetime | None
    trigger_rule: str
    depends_on_past: bool
    wait_for_downstream: bool
    retries: int
    queue: str | None
    pool: str
    pool_slots: int
    execution_timeout: Duration | None
    retry_delay: Duration | None
    retry_exponential_backoff: float
    priority_weight: int
    weight_rule: str | None = None
    ui_color: str | None = None
    ui_fgcolor: str | None = None
    template_fields: list[str] = Field(default_factory=list)
    downstream_task_ids: list[str]
    doc_md: str | None = None
    operator_name: str
    params: dict[str, Any] = Field(default_factory=dict)
    class_ref: dict[str, Any] | None
    is_mapped: bool
    extra_links: list[str] = Field(default_factory=list)
    #: Additions of Paceline.
    upstream_task_ids: list[str]
    group_id: str | None
    is_setup: bool
    is_teardown: bool


class TaskPage(Page):
    """The tasks of a DAG."""

    tasks: list[Task]


def duration(seconds: float | None) -> dict[str, Any] | None:
    """A duration as the fields of Duration."""
    if seconds is None:
        return None
    length = timedelta(seconds=seconds)
    return {"days": length.days, "seconds": length.seconds, "microseconds": length.microseconds}


def file_token(file: str) -> str:
    """A DAG file's path as one part of a URL."""
    return base64.urlsafe_b64encode(file.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def file_of(token: str) -> str | None:
    """The path in a file token; None if it is not one."""
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
