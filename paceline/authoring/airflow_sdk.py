"""Small names of `airflow.sdk`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from paceline.authoring import macros as macros  # noqa: PLC0414 - DAG files import it
from paceline.authoring import weights
from paceline.authoring.asset import Asset, AssetAlias
from paceline.states import RunState, TaskState

TaskInstanceState = TaskState
DagRunState = RunState


class WeightRule(StrEnum):
    """The weight rules of tasks."""

    DOWNSTREAM = weights.DOWNSTREAM
    UPSTREAM = weights.UPSTREAM
    ABSOLUTE = weights.ABSOLUTE


@dataclass
class Metadata:
    """The extra of an asset event. A @task function with this outlet yields it: `yield Metadata(asset, {"rows": 3})`.

    With `alias`, which must be an outlet of the task, the asset is updated through that alias.
    """

    asset: Asset
    extra: Mapping[str, Any] = field(default_factory=dict)
    alias: AssetAlias | None = None


class ParsingContext(NamedTuple):
    """The DAG and task for which a file is read; None if it is read for all of them."""

    dag_id: str | None
    task_id: str | None


def get_parsing_context() -> ParsingContext:
    """The DAG and the task for which the file is read. Both are None: a worker reads a file once for all of its DAGs."""
    return ParsingContext(None, None)
