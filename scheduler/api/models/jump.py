"""What a part of a name leads to."""

from paceline.states import RunState
from scheduler.api.models.base import Model, from_row


class JumpDag(Model):
    """A DAG."""

    dag_id: str
    is_paused: bool
    #: Whether the account may trigger and pause it.
    may_operate: bool


class JumpTask(Model):
    """A task, with the newest run of its DAG."""

    dag_id: str
    task_id: str
    dag_run_id: str = from_row("run_id")


class JumpRun(Model):
    """A run."""

    dag_id: str
    dag_run_id: str = from_row("run_id")
    state: RunState


class JumpAsset(Model):
    """An asset."""

    id: int
    uri: str


class Jump(Model):
    """The things whose names contain a text, at most eight of each kind: only those that the account may see."""

    dags: list[JumpDag]
    tasks: list[JumpTask]
    runs: list[JumpRun]
    assets: list[JumpAsset]
    connections: list[str]
    variables: list[str]
    #: Settings as section.key.
    settings: list[str]
