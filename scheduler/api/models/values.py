"""What tasks and assets store: XComs, the values of the state store, and requests to a person ("human in the loop") with their
answers.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from scheduler.api.models.base import Body, Model, Moment, Page, from_row
from scheduler.api.models.task_instances import TaskInstance, TaskInstanceTry


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("null cannot be stored as a value; delete the key")
    return value


Value = Annotated[Any, AfterValidator(_not_null)]


class XCom(Model):
    """An XCom without its value."""

    key: str
    timestamp: datetime = from_row("created_at")
    logical_date: datetime | None
    map_index: int
    task_id: str
    task_display_name: str = from_row("task_id")
    dag_id: str
    dag_display_name: str = from_row("dag_id")
    run_id: str
    run_after: datetime


class XComValue(XCom):
    """An XCom."""

    value: Any


class XComPage(Page):
    """A page of XComs."""

    xcom_entries: list[XCom]


class XComCreate(Body):
    """A new XCom."""

    key: str = Field(min_length=1, max_length=512)
    value: Any
    map_index: int = -1


class XComUpdate(Body):
    """A new value of an XCom."""

    value: Any
    map_index: int = -1


class TaskState(Model):
    """A value that the tries of a task instance share."""

    key: str
    value: Any
    updated_at: datetime
    expires_at: datetime | None


class TaskStates(Page):
    """A page of the values of a task instance."""

    task_state_store: list[TaskState]


class TaskStateBody(Body):
    """A value; `default` expires it after core.task_state_retention_days, and null never."""

    value: Value
    expires_at: Moment | Literal["default"] | None = "default"


class ValueBody(Body):
    """A value."""

    value: Value


class Writer(Model):
    """The last writer of a value."""

    kind: Literal["task", "watcher", "api"]
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None


class AssetState(Model):
    """A value of an asset that the tasks of all runs share."""

    key: str
    value: Any
    updated_at: datetime
    last_updated_by: Writer | None

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"last_updated_by": {"kind": "task", **row} if row["dag_id"] else {"kind": "api"}}


class AssetStates(Page):
    """A page of the values of an asset."""

    asset_state_store: list[AssetState]


class HitlUser(Model):
    """A person who may answer, or has answered."""

    id: str
    name: str


class HitlAnswer(Body):
    """An answer: one or more of the options, and values of the params."""

    chosen_options: Annotated[list[str], Field(min_length=1)]
    params_input: dict[str, Any] = Field(default_factory=dict)


class HitlAnswered(Model):
    """The answer as it was stored."""

    responded_by: HitlUser
    responded_at: datetime
    chosen_options: list[str]
    params_input: dict[str, Any]


class HitlRequest(Model):
    """A request, and the answer if there is one."""

    subject: str
    body: str | None = None
    options: list[str]
    defaults: list[str] | None = None
    multiple: bool = False
    params: dict[str, Any] = Field(default_factory=dict)
    assigned_users: list[HitlUser] = Field(default_factory=list)
    created_at: datetime
    #: When the defaults become the answer, or the task fails if there are none. null: never.
    respond_by: datetime | None = None
    response_received: bool = False
    responded_by_user: HitlUser | None = None
    responded_at: datetime | None = None
    chosen_options: list[str] | None = None
    params_input: dict[str, Any] = Field(default_factory=dict)


class HitlDetail(HitlRequest):
    """The question of a task instance, and the answer if there is one."""

    task_instance: TaskInstance


class HitlTryDetail(HitlRequest):
    """The question of a try, and the answer if there is one."""

    task_instance: TaskInstanceTry


class HitlDetailPage(Page):
    """A page of requests to people."""

    hitl_details: list[HitlDetail]
