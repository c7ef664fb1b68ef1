"""A DAG whose form is longer than the window, with a param that each run must give."""

from paceline import DAG, Param
from paceline.operators import EmptyOperator

with DAG(
    "long_form",
    schedule=None,
    tags=["tests"],
    params={
        "ticket": Param(type="string", pattern="^[A-Z]+-[0-9]+$", title="Ticket", description="Such as OPS-12."),
        "limit": Param(10, type="integer", minimum=1, title="Limit"),
        **{
            f"option_{number}": Param("", type="string", title=f"Option {number}", description="Not needed.")
            for number in range(14)
        },
    },
) as long_form:
    EmptyOperator(task_id="end")
