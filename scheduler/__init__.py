"""Paceline: what a DAG file imports. Loads authoring only: no database, broker or Spark code."""

from scheduler.authoring.asset import Asset, AssetAlias, AssetAll, AssetAny
from scheduler.authoring.connection import Connection
from scheduler.authoring.context import get_current_context
from scheduler.authoring.dag import DAG, dag
from scheduler.authoring.deadline import AsyncCallback, DeadlineAlert, DeadlineReference, SyncCallback
from scheduler.authoring.edges import Label, chain, chain_linear, cross_downstream
from scheduler.authoring.operator import BaseOperator
from scheduler.authoring.params import Param
from scheduler.authoring.task_group import TaskGroup, task_group
from scheduler.authoring.trigger_rule import TriggerRule
from scheduler.authoring.variable import Variable
from scheduler.authoring.xcom_arg import XComArg
from scheduler.masking import mask_secret
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
