"""The operators that DAG files import."""

from scheduler.authoring.operator import BaseOperator
from scheduler.operators.bash import BashOperator
from scheduler.operators.branch import BaseBranchOperator, BranchMixIn, BranchPythonOperator, ShortCircuitOperator, SkipMixin
from scheduler.operators.calendar import BranchDateTimeOperator, BranchDayOfWeekOperator, LatestOnlyOperator
from scheduler.operators.empty import EmptyOperator
from scheduler.operators.hitl import ApprovalOperator, HITLBranchOperator, HITLEntryOperator, HITLOperator
from scheduler.operators.python import BaseAsyncOperator, PythonOperator
from scheduler.operators.spark_submit import SparkSqlOperator, SparkSubmitOperator
from scheduler.operators.trigger_dagrun import TriggerDagRunOperator
from scheduler.operators.virtualenv import (
    BranchExternalPythonOperator,
    BranchPythonVirtualenvOperator,
    ExternalPythonOperator,
    PythonVirtualenvOperator,
)

__all__ = [
    "ApprovalOperator", "BaseAsyncOperator", "BaseBranchOperator", "BaseOperator", "BashOperator", "BranchDateTimeOperator",
    "BranchDayOfWeekOperator", "BranchExternalPythonOperator", "BranchMixIn", "BranchPythonOperator",
    "BranchPythonVirtualenvOperator", "EmptyOperator", "ExternalPythonOperator", "HITLBranchOperator", "HITLEntryOperator",
    "HITLOperator", "LatestOnlyOperator", "PythonOperator", "PythonVirtualenvOperator", "ShortCircuitOperator", "SkipMixin",
    "SparkSqlOperator", "SparkSubmitOperator", "TriggerDagRunOperator",
]  # fmt: skip
