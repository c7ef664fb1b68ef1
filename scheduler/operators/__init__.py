"""The operators a DAG file imports."""

from scheduler.authoring.operator import BaseOperator
from scheduler.operators.bash import BashOperator
from scheduler.operators.empty import EmptyOperator
from scheduler.operators.python import PythonOperator

__all__ = ["BaseOperator", "BashOperator", "EmptyOperator", "PythonOperator"]
