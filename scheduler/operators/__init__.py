"""The operators that DAG files import."""

from scheduler.authoring.operator import BaseOperator
from scheduler.operators.bash import BashOperator
from scheduler.operators.branch import BaseBranchOperator, BranchPythonOperator, ShortCircuitOperator
from scheduler.operators.calendar import BranchDateTimeOperator, BranchDayOfWeekOperator, LatestOnlyOperator
from scheduler.operators.empty import EmptyOperator
from scheduler.operators.python import PythonOperator
from scheduler.operators.spark_submit import SparkSqlOperator, SparkSubmitOperator
from scheduler.operators.trigger_dagrun import TriggerDagRunOperator

__all__ = [
    "BaseBranchOperator",
    "BaseOperator",
    "BashOperator",
    "BranchDateTimeOperator",
    "BranchDayOfWeekOperator",
    "BranchPythonOperator",
    "EmptyOperator",
    "LatestOnlyOperator",
    "PythonOperator",
    "ShortCircuitOperator",
    "SparkSqlOperator",
    "SparkSubmitOperator",
    "TriggerDagRunOperator",
]
