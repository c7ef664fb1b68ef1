"""The names that DAG files import. Each module is loaded at first use; none loads database, broker or Spark code."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.authoring import macros
    from scheduler.authoring.airflow_conf import conf
    from scheduler.authoring.airflow_sdk import DagRunState, Metadata, TaskInstanceState, WeightRule, get_parsing_context
    from scheduler.authoring.asset import Asset, AssetAlias, AssetAll, AssetAny, AssetWatcher
    from scheduler.authoring.connection import Connection
    from scheduler.authoring.context import TaskInstance
    from scheduler.authoring.dag import DAG, dag
    from scheduler.authoring.deadline import AsyncCallback, DeadlineAlert, DeadlineReference, SyncCallback
    from scheduler.authoring.edges import Label, chain, chain_linear, cross_downstream
    from scheduler.authoring.hook import BaseHook
    from scheduler.authoring.loops import LoopDecision
    from scheduler.authoring.notifier import BaseNotifier
    from scheduler.authoring.object_storage import ObjectStoragePath
    from scheduler.authoring.operator import BaseOperator
    from scheduler.authoring.operator_link import BaseOperatorLink
    from scheduler.authoring.params import Param, ParamsDict
    from scheduler.authoring.retry_policy import ExceptionRetryPolicy, RetryAction, RetryDecision, RetryPolicy, RetryRule
    from scheduler.authoring.running import get_current_context
    from scheduler.authoring.state_store import NEVER_EXPIRE
    from scheduler.authoring.task_group import TaskGroup, task_group
    from scheduler.authoring.templates import literal
    from scheduler.authoring.trigger_rule import TriggerRule
    from scheduler.authoring.typed_context import Context
    from scheduler.authoring.variable import Variable
    from scheduler.authoring.xcom_arg import XComArg
    from scheduler.operators.asset import asset
    from scheduler.operators.branch import BaseBranchOperator, BranchMixIn, SkipMixin
    from scheduler.operators.decorators import task
    from scheduler.operators.python import BaseAsyncOperator
    from scheduler.operators.sensors.base import BaseSensorOperator, PokeReturnValue
    from scheduler.operators.setup_teardown import setup, teardown
    from scheduler.process.secrets_masker import mask_secret
    from scheduler.timetables import (
        AllowedKeyMapper,
        AssetOrTimeSchedule,
        ChainMapper,
        CronDataIntervalTimetable,
        CronPartitionTimetable,
        CronTriggerTimetable,
        DayWindow,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
        EventsTimetable,
        FanOutMapper,
        FixedKeyMapper,
        HourWindow,
        IdentityMapper,
        MinimumCount,
        MonthWindow,
        MultipleCronTriggerTimetable,
        PartitionedAssetTimetable,
        PartitionedAtRuntime,
        PartitionMapper,
        ProductMapper,
        QuarterWindow,
        RollupMapper,
        SegmentWindow,
        StartOfDayMapper,
        StartOfHourMapper,
        StartOfMonthMapper,
        StartOfQuarterMapper,
        StartOfWeekMapper,
        StartOfYearMapper,
        WaitForAll,
        WeekWindow,
        Window,
        YearWindow,
    )

__all__ = [
    "DAG", "NEVER_EXPIRE", "AllowedKeyMapper", "Asset", "AssetAlias", "AssetAll", "AssetAny", "AssetOrTimeSchedule", "AssetWatcher",
    "AsyncCallback", "BaseAsyncOperator", "BaseBranchOperator", "BaseHook", "BaseNotifier", "BaseOperator", "BaseOperatorLink",
    "BaseSensorOperator", "BranchMixIn", "ChainMapper", "Connection", "Context", "CronDataIntervalTimetable",
    "CronPartitionTimetable", "CronTriggerTimetable", "DagRunState", "DayWindow", "DeadlineAlert", "DeadlineReference",
    "DeltaDataIntervalTimetable", "DeltaTriggerTimetable", "EventsTimetable", "ExceptionRetryPolicy", "FanOutMapper",
    "FixedKeyMapper", "HourWindow", "IdentityMapper", "Label", "LoopDecision", "Metadata", "MinimumCount", "MonthWindow",
    "MultipleCronTriggerTimetable", "ObjectStoragePath", "Param", "ParamsDict", "PartitionMapper", "PartitionedAssetTimetable",
    "PartitionedAtRuntime", "PokeReturnValue", "ProductMapper", "QuarterWindow", "RetryAction", "RetryDecision", "RetryPolicy",
    "RetryRule", "RollupMapper", "SegmentWindow", "SkipMixin", "StartOfDayMapper", "StartOfHourMapper", "StartOfMonthMapper",
    "StartOfQuarterMapper", "StartOfWeekMapper", "StartOfYearMapper", "SyncCallback", "TaskGroup", "TaskInstance",
    "TaskInstanceState", "TriggerRule", "Variable", "WaitForAll", "WeekWindow", "WeightRule", "Window", "XComArg", "YearWindow",
    "asset", "chain", "chain_linear", "conf", "cross_downstream", "dag", "get_current_context", "get_parsing_context", "literal",
    "macros", "mask_secret", "setup", "task", "task_group", "teardown",
]  # fmt: skip

#: The names that each module defines. The command line and short-lived processes need hardly any of them.
_NAMES = {
    "scheduler.authoring.airflow_conf": "conf",
    "scheduler.authoring.airflow_sdk": "DagRunState Metadata TaskInstanceState WeightRule get_parsing_context",
    "scheduler.authoring.asset": "Asset AssetAlias AssetAll AssetAny AssetWatcher",
    "scheduler.authoring.connection": "Connection",
    "scheduler.authoring.context": "TaskInstance",
    "scheduler.authoring.dag": "DAG dag",
    "scheduler.authoring.deadline": "AsyncCallback DeadlineAlert DeadlineReference SyncCallback",
    "scheduler.authoring.edges": "Label chain chain_linear cross_downstream",
    "scheduler.authoring.hook": "BaseHook",
    "scheduler.authoring.loops": "LoopDecision",
    "scheduler.authoring.notifier": "BaseNotifier",
    "scheduler.authoring.object_storage": "ObjectStoragePath",
    "scheduler.authoring.operator": "BaseOperator",
    "scheduler.authoring.operator_link": "BaseOperatorLink",
    "scheduler.authoring.params": "Param ParamsDict",
    "scheduler.authoring.retry_policy": "ExceptionRetryPolicy RetryAction RetryDecision RetryPolicy RetryRule",
    "scheduler.authoring.running": "get_current_context",
    "scheduler.authoring.state_store": "NEVER_EXPIRE",
    "scheduler.authoring.task_group": "TaskGroup task_group",
    "scheduler.authoring.templates": "literal",
    "scheduler.authoring.trigger_rule": "TriggerRule",
    "scheduler.authoring.typed_context": "Context",
    "scheduler.authoring.variable": "Variable",
    "scheduler.authoring.xcom_arg": "XComArg",
    "scheduler.process.secrets_masker": "mask_secret",
    "scheduler.operators.asset": "asset",
    "scheduler.operators.branch": "BaseBranchOperator BranchMixIn SkipMixin",
    "scheduler.operators.decorators": "task",
    "scheduler.operators.python": "BaseAsyncOperator",
    "scheduler.operators.sensors.base": "BaseSensorOperator PokeReturnValue",
    "scheduler.operators.setup_teardown": "setup teardown",
    "scheduler.timetables": (
        "AllowedKeyMapper AssetOrTimeSchedule ChainMapper CronDataIntervalTimetable CronPartitionTimetable CronTriggerTimetable "
        "DayWindow DeltaDataIntervalTimetable DeltaTriggerTimetable EventsTimetable FanOutMapper FixedKeyMapper HourWindow "
        "IdentityMapper MinimumCount MonthWindow MultipleCronTriggerTimetable PartitionMapper PartitionedAssetTimetable "
        "PartitionedAtRuntime ProductMapper QuarterWindow RollupMapper SegmentWindow StartOfDayMapper StartOfHourMapper "
        "StartOfMonthMapper StartOfQuarterMapper StartOfWeekMapper StartOfYearMapper WaitForAll WeekWindow Window YearWindow"
    ),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "macros":
        return importlib.import_module("scheduler.authoring.macros")
    if name == "__version__":
        return importlib.import_module("scheduler.authoring.airflow_sdk").version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
