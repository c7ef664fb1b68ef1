"""Requests to a person ("human in the loop"), and the answers."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from scheduler.api.models.base import Body, Model, Page
from scheduler.api.models.task_instances import TaskInstance, TaskInstanceTry


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
