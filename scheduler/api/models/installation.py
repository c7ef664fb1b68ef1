"""Audit entries, processes and settings."""

import json
from datetime import datetime
from typing import Any

from pydantic import model_validator

from scheduler.api.models.base import Model, Page, from_row


class EventLog(Model):
    """An entry of the audit log."""

    event_log_id: int = from_row("id")
    when: datetime = from_row("at")
    dag_id: str | None
    dag_display_name: str | None = from_row("dag_id")
    task_id: str | None
    task_display_name: str | None = from_row("task_id")
    run_id: str | None
    map_index: int | None
    try_number: int | None = None
    event: str
    logical_date: datetime | None
    owner: str | None = from_row("account")
    extra: str | None
    #: Additions of Paceline.
    address: str | None
    status: int | None

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"extra": json.dumps(row["extra"], ensure_ascii=False)}


class EventLogPage(Page):
    """A page of the audit log."""

    event_logs: list[EventLog]


#: Airflow's name for each kind of process.
JOBS = {"scheduler": "SchedulerJob", "worker": "LocalTaskJob", "waiter": "TriggererJob"}


class Job(Model):
    """A scheduler, worker or waiter."""

    id: int = from_row("number")
    dag_id: str | None = None
    dag_display_name: str | None = None
    state: str | None
    job_type: str | None
    start_date: datetime | None = from_row("started_at")
    end_date: datetime | None = from_row("stopped_at")
    latest_heartbeat: datetime | None = from_row("heartbeat_at")
    executor_class: str | None = "CeleryExecutor"
    hostname: str | None = from_row("host")
    unixname: str | None = from_row("name")

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"job_type": JOBS[row["kind"]]}


class JobPage(Page):
    """A page of processes."""

    jobs: list[Job]


class ConfigOption(Model):
    """A setting."""

    key: str
    value: str


class ConfigSection(Model):
    """A section of the settings."""

    name: str
    options: list[ConfigOption]


class Config(Model):
    """The settings of this web process. Secrets are masked."""

    sections: list[ConfigSection]
