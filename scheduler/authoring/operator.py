"""The base class of every operator: a task that can also be mapped."""

from typing import Any

from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.mapping import OperatorPartial


class Operator(AbstractOperator):
    """One task of a DAG. Subclasses implement `execute`, list `template_fields`, and pass **kwargs on to this class.

    All operators take the arguments of TaskArguments, with Airflow's names and meaning. The most common ones:

    - `task_id`: at most 250 letters, digits, dashes, dots and underscores, unique in the DAG.
    - `retries`, `retry_delay` (a timedelta or seconds), `execution_timeout` (a timedelta).
    - `trigger_rule`: see TriggerRule. `depends_on_past`: wait for the same task of the previous run.
    - `pool`, `pool_slots`, `priority_weight`, `queue`: where the task runs, and in which order.

    A wrong or unknown argument raises DagError with the line of the author.
    """

    @classmethod
    def partial(cls, **given: Any) -> OperatorPartial:
        """The arguments that all instances of a mapped task share; `.expand(...)` adds those that differ."""
        return OperatorPartial(cls, given)


BaseOperator = Operator
