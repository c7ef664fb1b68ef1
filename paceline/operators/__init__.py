"""The operators that DAG files import."""

from paceline.authoring.operator import BaseOperator
from paceline.operators.bash import BashOperator
from paceline.operators.branch import BaseBranchOperator, BranchMixIn, BranchPythonOperator, ShortCircuitOperator, SkipMixin
from paceline.operators.calendar import BranchDateTimeOperator, BranchDayOfWeekOperator, LatestOnlyOperator
from paceline.operators.empty import EmptyOperator
from paceline.operators.hitl import ApprovalOperator, HITLBranchOperator, HITLEntryOperator, HITLOperator
from paceline.operators.python import BaseAsyncOperator, PythonOperator
from paceline.operators.spark_submit import SparkSqlOperator, SparkSubmitOperator
from paceline.operators.trigger_dagrun import TriggerDagRunOperator
from paceline.operators.virtualenv import (
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
