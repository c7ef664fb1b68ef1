"""The operators that DAG files import."""

from paceline.authoring.operator import BaseOperator
from paceline.operators.bash import BashOperator
from paceline.operators.branch import (
    BaseBranchOperator,
    BranchDateTimeOperator,
    BranchDayOfWeekOperator,
    BranchMixIn,
    BranchPythonOperator,
    LatestOnlyOperator,
    ShortCircuitOperator,
    SkipMixin,
)
from paceline.operators.compaction import compaction_dag
from paceline.operators.hitl import ApprovalOperator, HITLBranchOperator, HITLEntryOperator, HITLOperator
from paceline.operators.python import BaseAsyncOperator, EmptyOperator, PythonOperator
from paceline.operators.spark import SparkSqlOperator, SparkSubmitOperator
from paceline.operators.sql import SQLExecuteQueryOperator
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
    "HITLOperator", "LatestOnlyOperator", "PythonOperator", "PythonVirtualenvOperator", "SQLExecuteQueryOperator",
    "ShortCircuitOperator", "SkipMixin", "SparkSqlOperator", "SparkSubmitOperator", "TriggerDagRunOperator",
    "compaction_dag",
]  # fmt: skip
