"""The base classes and types of all shapes."""

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, create_model

from paceline.states import RunState, TaskState
from scheduler.store.read.listing import ANY

#: The comparisons of range filters.
SIGNS = ("gte", "gt", "lte", "lt")

#: Kinds of things whose numbers are shown as UUIDs, so that two kinds never share one.
INSTANCE_NUMBER, VERSION_NUMBER = 2, 3


def numbered(kind: int) -> BeforeValidator:
    """Shows a number of the database as a UUID."""
    return BeforeValidator(lambda value: UUID(int=kind << 64 | value) if isinstance(value, int) else value)


class Model(BaseModel):
    """A response. It is read from a row by the alias of each field; other columns are left out."""

    model_config = ConfigDict(populate_by_name=True)


class Body(BaseModel):
    """A request. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


def with_bounds(*names: str, signs: Iterable[str] = SIGNS) -> type[Body]:
    """A base of bodies with these comparisons of each of these range filters, by name. `duration` is in seconds."""
    kinds = {f"{name}_{sign}": float if name == "duration" else Moment for name in names for sign in signs}
    fields: Any = {name: (kind | None, None) for name, kind in kinds.items()}
    return create_model("Bounds", __base__=Body, **fields)


def from_row(name: str) -> Any:
    """A field with another name in the store."""
    return Field(validation_alias=name)


class Version(Model):
    """A version of a DAG."""

    id: Annotated[UUID, numbered(VERSION_NUMBER)] = from_row("version_id")
    version_number: int
    dag_id: str
    dag_display_name: str = from_row("dag_id")
    bundle_name: str | None = "dags-folder"
    bundle_version: str | None = None
    bundle_url: str | None = None
    created_at: datetime = from_row("version_created_at")


class Page(Model):
    """The base of all lists."""

    total_entries: int


class CursorPage(Model):
    """The base of lists with cursors. `total_entries` is exact, or with a `total_entries_limit` counts no more entries than that:
    with a cursor, or with the parameter `count_limit`.
    """

    total_entries: int | None = None
    total_entries_limit: int | None = None
    next_cursor: str | None = None
    previous_cursor: str | None = None


def _with_plus(value: Any) -> Any:
    """Clients that do not encode the + of a UTC offset send a space."""
    return value.replace(" ", "+") if isinstance(value, str) and value.count(" ") == 1 and "T" in value else value


def _in_utc(value: datetime) -> datetime:
    try:
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise ValueError("the time must lie in the years 1 to 9999 in UTC") from None


#: A time of a client: without an offset, it is UTC.
Moment = Annotated[datetime, BeforeValidator(_with_plus), AfterValidator(_in_utc)]
Note = Annotated[str, StringConstraints(max_length=1000)]
Missing = Literal["fail", "skip"]
Existing = Literal["fail", "skip", "overwrite"]


class BulkResult(Model):
    """The result of one kind of bulk action."""

    success: list[str] = Field(default_factory=list)
    errors: list[dict[str, Any]] = Field(default_factory=list)


class BulkResponse(Model):
    """The result of each kind of bulk action; null for kinds that the request does not contain."""

    create: BulkResult | None = None
    update: BulkResult | None = None
    delete: BulkResult | None = None


class Detail(Model):
    """An error."""

    detail: str | list[dict[str, Any]]


#: Ours, and those that only Airflow has: `restarting` is our shutdown, and nothing waits for input. `none` is undecided.
TASK_STATES = (*TaskState, "restarting", "awaiting_input", "no_status")
RUN_STATES = (*RunState, "none")
RUN_TYPES = (
    "scheduled", "manual", "backfill", "asset_triggered", "asset_materialization", "operator_triggered", "reproduction"
)  # fmt: skip


def _each_known(what: str, names: Collection[str]) -> Callable[[list[str] | None], list[str] | None]:
    allowed = {*names, ANY}

    def check(values: list[str] | None) -> list[str] | None:
        for value in values or ():
            if value not in allowed:
                raise ValueError(f"{value[:100]!r} is not a {what}: choose {', '.join(names)}")
        return values

    return check


def _is_run_state(value: str | None) -> str | None:
    _each_known("state of a run", RUN_STATES)(None if value is None else [value])
    return value


OneRunState = AfterValidator(_is_run_state)
#: For parameters and fields that are lists.
TaskStates = AfterValidator(_each_known("state of a task instance", TASK_STATES))
RunStates = AfterValidator(_each_known("state of a run", RUN_STATES))
RunTypes = AfterValidator(_each_known("type of a run", RUN_TYPES))
