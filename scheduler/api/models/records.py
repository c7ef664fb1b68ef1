"""Pools, variables, connections and backfills."""

import json
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, model_validator

from paceline.states import BACKFILL_MAX_ACTIVE_RUNS
from scheduler.api.models.base import Body, Model, Moment, Page, from_row
from scheduler.store.queueing.pools import NAME_MAX_LENGTH


class Pool(Model):
    """A pool with its slots in use. Without a limit, it has -1 open slots."""

    name: str
    slots: int
    description: str | None
    include_deferred: bool
    occupied_slots: int
    running_slots: int
    queued_slots: int
    scheduled_slots: int
    deferred_slots: int
    open_slots: int
    team_name: str | None = None
    #: An addition of Paceline: the queue of tasks in this pool that set none.
    queue: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"open_slots": max(0, row["slots"] - row["occupied_slots"]) if row["slots"] >= 0 else -1}


class PoolPage(Page):
    """A page of pools."""

    pools: list[Pool]


class PoolBody(Body):
    """A new pool."""

    name: str = Field(min_length=1, max_length=NAME_MAX_LENGTH)
    slots: int = Field(ge=-1, le=2**31 - 1)
    description: str | None = None
    include_deferred: bool = False
    team_name: str | None = None


class PoolPatch(Body):
    """A change of a pool."""

    pool: str | None = None
    slots: int | None = Field(None, ge=-1, le=2**31 - 1)
    description: str | None = None
    include_deferred: bool | None = None
    team_name: str | None = None


class Variable(Model):
    """A variable. Its value is masked if its key looks sensitive."""

    key: str
    value: str | None
    description: str | None
    is_encrypted: bool = True
    team_name: str | None = None


class VariablePage(Page):
    """A page of variables."""

    variables: list[Variable]


class VariableBody(Body):
    """A variable. A value that is not a text is stored as JSON."""

    key: str = Field(min_length=1, max_length=250)
    value: Any = None
    description: str | None = None
    team_name: str | None = None

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)


class Connection(Model):
    """A connection. Its password and its secret extra fields are masked."""

    connection_id: str = from_row("conn_id")
    conn_type: str
    description: str | None
    host: str | None
    login: str | None
    schema_: str | None = Field(validation_alias="schema", serialization_alias="schema")
    port: int | None
    password: str | None
    extra: str | None
    team_name: str | None = None


class ConnectionPage(Page):
    """A page of connections."""

    connections: list[Connection]


class ConnectionBody(Body):
    """A connection."""

    connection_id: str = Field(min_length=1, max_length=200, pattern=r"^[\w.-]+$")
    conn_type: str = Field(min_length=1, max_length=500)
    description: str | None = None
    host: str | None = None
    login: str | None = None
    schema_: str | None = Field(None, alias="schema")
    port: int | None = Field(None, ge=0, le=65535)
    password: str | None = None
    extra: str | None = None
    team_name: str | None = None


class ConnectionTestBody(Body):
    """The stored connection to test, and the queue whose workers are asked; without one, that of most tasks."""

    connection_id: str = Field(min_length=1, max_length=200, pattern=r"^[\w.-]+$")
    queue: str | None = Field(None, max_length=250)


class ConnectionTest(Model):
    """A test of a connection, with one sentence that says how it ended."""

    token: str
    connection_id: str
    queue: str
    state: Literal["pending", "success", "failed"]
    message: str | None
    worker: str | None


class BackfillBody(Body):
    """A new backfill: the runs of these dates, both included."""

    dag_id: str
    from_date: Moment
    to_date: Moment
    run_backwards: bool = False
    dag_run_conf: dict[str, Any] | None = None
    reprocess_behavior: Literal["none", "failed", "completed"] = "none"
    max_active_runs: int = Field(BACKFILL_MAX_ACTIVE_RUNS, ge=1, le=2**31 - 1)
    run_on_latest_version: bool | None = None


class BackfillCounts(Model):
    """The dates of a backfill by the state of their run: to be created, left out, or the state of the run."""

    waiting: int
    left_out: int
    queued: int
    running: int
    success: int
    failed: int


class Backfill(Model):
    """A backfill."""

    id: int
    dag_id: str
    dag_display_name: str = from_row("dag_id")
    from_date: datetime
    to_date: datetime
    dag_run_conf: dict[str, Any] | None = from_row("conf")
    is_paused: bool
    reprocess_behavior: str = from_row("reprocess")
    max_active_runs: int
    created_at: datetime
    completed_at: datetime | None = from_row("ended_at")
    updated_at: datetime
    #: An addition of Paceline.
    run_counts: BackfillCounts

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"updated_at": row["ended_at"] or row["created_at"]}


class BackfillPage(Page):
    """A page of backfills."""

    backfills: list[Backfill]


class BackfillDate(Model):
    """A run that a backfill would create."""

    logical_date: datetime | None
    partition_key: str | None = None
    partition_date: datetime | None = None


class BackfillDryRun(Page):
    """The runs that a backfill would create."""

    backfills: list[BackfillDate]
