# The public names, with the modules that define them: `__init__.py` loads each at first use.
from .authoring.airflow_conf import conf
from .authoring.asset import Asset, AssetAlias, AssetAll, AssetAny, AssetWatcher, Metadata
from .authoring.connection import BaseHook, Connection
from .authoring.context import TaskInstance, macros
from .authoring.dag import DAG, dag
from .authoring.deadline import AsyncCallback, DeadlineAlert, DeadlineReference, SyncCallback
from .authoring.edges import Label, chain, chain_linear, cross_downstream
from .authoring.execution import BaseOperatorLink
from .authoring.object_storage import ObjectStoragePath
from .authoring.operator import BaseOperator
from .authoring.params import Param, ParamsDict
from .authoring.retry_policy import ExceptionRetryPolicy, RetryAction, RetryDecision, RetryPolicy, RetryRule
from .authoring.running import get_current_context
from .authoring.scope import get_parsing_context
from .authoring.state_store import NEVER_EXPIRE
from .authoring.task_arguments import TriggerRule, WeightRule
from .authoring.task_group import LoopDecision, TaskGroup, task_group
from .authoring.task_instance import Context, DagRunState, TaskInstanceState
from .authoring.templates import BaseNotifier, literal
from .authoring.variable import Variable
from .authoring.version import __version__
from .authoring.xcom_arg import XComArg
from .decorators.task_decorator import setup, task, teardown
from .operators.asset import asset
from .operators.branch import BaseBranchOperator, BranchMixIn, SkipMixin
from .operators.python import BaseAsyncOperator
from .secrets_masker import mask_secret
from .sensors.base import BaseSensorOperator, PokeReturnValue
from .timetables import (
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
    "__version__", "asset", "chain", "chain_linear", "conf", "cross_downstream", "dag", "get_current_context",
    "get_parsing_context", "literal", "macros", "mask_secret", "setup", "task", "task_group", "teardown",
]  # fmt: skip
