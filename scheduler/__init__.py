"""Paceline: what a DAG file imports. Loads authoring only: no database, broker or Spark code."""

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
from scheduler.operators.decorators import task
from scheduler.operators.setup_teardown import setup, teardown

__all__ = [
    "DAG",
    "AsyncCallback",
    "BaseOperator",
    "Connection",
    "DeadlineAlert",
    "DeadlineReference",
    "Label",
    "Param",
    "SyncCallback",
    "TaskGroup",
    "TriggerRule",
    "Variable",
    "XComArg",
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
