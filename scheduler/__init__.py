"""The names that DAG files import. Each module is loaded at first use; none loads database, broker or Spark code."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.authoring.asset import Asset, AssetAlias, AssetAll, AssetAny
    from scheduler.authoring.connection import Connection
    from scheduler.authoring.dag import DAG, dag
    from scheduler.authoring.deadline import AsyncCallback, DeadlineAlert, DeadlineReference, SyncCallback
    from scheduler.authoring.edges import Label, chain, chain_linear, cross_downstream
    from scheduler.authoring.operator import BaseOperator
    from scheduler.authoring.params import Param
    from scheduler.authoring.running import get_current_context
    from scheduler.authoring.task_group import TaskGroup, task_group
    from scheduler.authoring.trigger_rule import TriggerRule
    from scheduler.authoring.variable import Variable
    from scheduler.authoring.xcom_arg import XComArg
    from scheduler.masking.secrets_masker import mask_secret
    from scheduler.operators.asset import asset
    from scheduler.operators.decorators import task
    from scheduler.operators.sensor import BaseSensorOperator, PokeReturnValue
    from scheduler.operators.setup_teardown import setup, teardown
    from scheduler.timetables import (
        AssetOrTimeSchedule,
        CronDataIntervalTimetable,
        CronTriggerTimetable,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
        EventsTimetable,
        MultipleCronTriggerTimetable,
    )

__all__ = [
    "DAG",
    "Asset",
    "AssetAlias",
    "AssetAll",
    "AssetAny",
    "AssetOrTimeSchedule",
    "AsyncCallback",
    "BaseOperator",
    "BaseSensorOperator",
    "Connection",
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "DeadlineAlert",
    "DeadlineReference",
    "DeltaDataIntervalTimetable",
    "DeltaTriggerTimetable",
    "EventsTimetable",
    "Label",
    "MultipleCronTriggerTimetable",
    "Param",
    "PokeReturnValue",
    "SyncCallback",
    "TaskGroup",
    "TriggerRule",
    "Variable",
    "XComArg",
    "asset",
    "chain",
    "chain_linear",
    "cross_downstream",
    "dag",
    "get_current_context",
    "mask_secret",
    "setup",
    "task",
    "task_group",
    "teardown",
]

#: Where each name is defined. The command line and short-lived processes need hardly any of it.
_MODULES = {
    "Asset": "scheduler.authoring.asset",
    "AssetAlias": "scheduler.authoring.asset",
    "AssetAll": "scheduler.authoring.asset",
    "AssetAny": "scheduler.authoring.asset",
    "AssetOrTimeSchedule": "scheduler.timetables",
    "AsyncCallback": "scheduler.authoring.deadline",
    "BaseOperator": "scheduler.authoring.operator",
    "BaseSensorOperator": "scheduler.operators.sensor",
    "Connection": "scheduler.authoring.connection",
    "CronDataIntervalTimetable": "scheduler.timetables",
    "CronTriggerTimetable": "scheduler.timetables",
    "DAG": "scheduler.authoring.dag",
    "DeadlineAlert": "scheduler.authoring.deadline",
    "DeadlineReference": "scheduler.authoring.deadline",
    "DeltaDataIntervalTimetable": "scheduler.timetables",
    "DeltaTriggerTimetable": "scheduler.timetables",
    "EventsTimetable": "scheduler.timetables",
    "Label": "scheduler.authoring.edges",
    "MultipleCronTriggerTimetable": "scheduler.timetables",
    "Param": "scheduler.authoring.params",
    "PokeReturnValue": "scheduler.operators.sensor",
    "SyncCallback": "scheduler.authoring.deadline",
    "TaskGroup": "scheduler.authoring.task_group",
    "TriggerRule": "scheduler.authoring.trigger_rule",
    "Variable": "scheduler.authoring.variable",
    "XComArg": "scheduler.authoring.xcom_arg",
    "asset": "scheduler.operators.asset",
    "chain": "scheduler.authoring.edges",
    "chain_linear": "scheduler.authoring.edges",
    "cross_downstream": "scheduler.authoring.edges",
    "dag": "scheduler.authoring.dag",
    "get_current_context": "scheduler.authoring.running",
    "mask_secret": "scheduler.masking.secrets_masker",
    "setup": "scheduler.operators.setup_teardown",
    "task": "scheduler.operators.decorators",
    "task_group": "scheduler.authoring.task_group",
    "teardown": "scheduler.operators.setup_teardown",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_all() -> None:
    """Import every public name, for a process that forks others: they then need not import it themselves."""
    for name in __all__:
        getattr(importlib.import_module(__name__), name)
