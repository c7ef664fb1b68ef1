"""Paceline: what a DAG file imports. Loads authoring only: no database, broker or Spark code."""

from scheduler.authoring.context import get_current_context
from scheduler.authoring.dag import DAG, dag
from scheduler.authoring.deadline import AsyncCallback, DeadlineAlert, DeadlineReference, SyncCallback
from scheduler.authoring.edges import chain, cross_downstream
from scheduler.authoring.operator import BaseOperator
from scheduler.authoring.trigger_rule import TriggerRule
from scheduler.authoring.xcom_arg import XComArg
from scheduler.operators.decorators import task

__all__ = [
    "DAG",
    "AsyncCallback",
    "BaseOperator",
    "DeadlineAlert",
    "DeadlineReference",
    "SyncCallback",
    "TriggerRule",
    "XComArg",
    "chain",
    "cross_downstream",
    "dag",
    "get_current_context",
    "task",
]
