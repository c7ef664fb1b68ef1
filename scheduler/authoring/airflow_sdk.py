"""Small names of `airflow.sdk`, and those that Paceline does not support with what to write in their place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import metadata
from typing import Any, NamedTuple

from scheduler.authoring import weights
from scheduler.authoring.asset import Asset, AssetAlias
from scheduler.states import RunState, TaskState

TaskInstanceState = TaskState
DagRunState = RunState


class WeightRule(StrEnum):
    """The weight rules of tasks."""

    DOWNSTREAM = weights.DOWNSTREAM
    UPSTREAM = weights.UPSTREAM
    ABSOLUTE = weights.ABSOLUTE


@dataclass
class Metadata:
    """The extra of an asset event. A @task function with this outlet yields it: `yield Metadata(asset, {"rows": 3})`."""

    asset: Asset
    extra: Mapping[str, Any] = field(default_factory=dict)
    alias: AssetAlias | None = None


class ParsingContext(NamedTuple):
    """The DAG and task for which a file is read; None if it is read for all of them."""

    dag_id: str | None
    task_id: str | None


def get_parsing_context() -> ParsingContext:
    """For which DAG and task the file is read. Both are None: workers keep a file after reading it once for all its DAGs."""
    return ParsingContext(None, None)


def version() -> str:
    """The version of Paceline."""
    return metadata.version("paceline")


_PARTITIONS = "partitions are not supported; schedule the DAG with a data interval, and use data_interval_start as the partition"
#: Names of airflow.sdk that do not exist here, and what to do.
UNSUPPORTED: Mapping[str, str] = {
    "AssetWatcher": "write a DAG whose task waits with a deferrable sensor and has the asset as an outlet",
    "AssetAccessControl": "limit the access of users with `paceline users` instead",
    "BaseXCom": "values are stored as JSON; write large ones to a file and return its path",
    "ResumableJobMixin": "SparkSubmitOperator resumes by itself; other operators store their job in task_state_store",
    "EdgeModifier": "write Label",
    "deadline_reference": "write one of DeadlineReference",
    "BaseDeadlineReference": "write one of DeadlineReference",
    "lineage": "declare inlets and outlets",
    "result": "the result of a run is the XCom of its last task",
    "SecretCache": "a worker caches variables and connections itself",
    "HITLOperator": "let a person trigger a second DAG, with the answer as a param",
    "ApprovalOperator": "let a person trigger a second DAG, with the answer as a param",
    **dict.fromkeys(
        (
            "AllowedKeyMapper", "ChainMapper", "CronPartitionTimetable", "DayWindow", "FanOutMapper", "FixedKeyMapper",
            "HourWindow", "IdentityMapper", "MinimumCount", "MonthWindow", "PartitionMapper", "PartitionedAssetTimetable",
            "PartitionedAtRuntime", "ProductMapper", "QuarterWindow", "RollupMapper", "SegmentWindow", "StartOfDayMapper",
            "StartOfHourMapper", "StartOfMonthMapper", "StartOfQuarterMapper", "StartOfWeekMapper", "StartOfYearMapper",
            "WaitForAll", "WeekWindow", "Window", "YearWindow",
        ),
        _PARTITIONS,
    ),
}  # fmt: skip
