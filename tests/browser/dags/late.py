"""A DAG whose deadline is near, and whose task asks a question."""

from datetime import timedelta

from paceline import DAG, DeadlineAlert, DeadlineReference
from paceline.operators.hitl import ApprovalOperator

with DAG(
    "late", schedule=None, tags=["tests"], deadline=DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(minutes=30), print)
) as late:
    ApprovalOperator(
        task_id="ask", subject="Send the invoices without the late shop?", defaults="Reject", response_timeout=timedelta(minutes=40)
    )
