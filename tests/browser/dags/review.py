"""Tasks that wait for a person: for an approval, and for values."""

from paceline import DAG, Param
from paceline.operators import EmptyOperator
from paceline.operators.hitl import ApprovalOperator, HITLOperator

with DAG(
    "review", schedule=None, tags=["sales"], description="A price list that a person approves before it is published"
) as review:
    approve = ApprovalOperator(
        task_id="approve",
        subject="Publish the price list of week 48?",
        body="412 prices change, 9 of them by more than 20 %.\nThe report is in s3://shop/reports/prices-48.html.",
    )
    channels = HITLOperator(
        task_id="channels",
        subject="Where is the campaign shown?",
        options=["Shop", "Newsletter", "Social media"],
        multiple=True,
        params={"budget": Param(500, type="integer", minimum=0, title="Budget", description="EUR for the first week.")},
    )
    [approve, channels] >> EmptyOperator(task_id="publish")
