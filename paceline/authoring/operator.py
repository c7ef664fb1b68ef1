"""The base class of every operator: a task that can also be mapped."""

from typing import Any, Self

from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.mapping import OperatorPartial


class Operator(AbstractOperator):
    """One task of a DAG. Subclasses implement `execute`, list `template_fields`, and pass **kwargs on to this class.

    All operators take these arguments, with Airflow's names and meaning:

    - `task_id`: at most 250 letters, digits, dashes, dots and underscores, unique in the DAG. `dag` and `task_group` are by default
      those of the `with` block around it. `default_args`: arguments that this task takes if they are not given.
    - `retries`: how often the task is tried again. `retry_delay` and `max_retry_delay`: a timedelta or seconds.
      `retry_exponential_backoff`: multiply the delay after each try, by 2 with True. `retry_policy`: decides by the exception.
    - `execution_timeout`: a timedelta, after which a try fails. `sla`: a timedelta after which a miss is reported.
    - `trigger_rule`: see TriggerRule. `start_date`, `end_date`: runs outside of these dates do not have the task.
    - `depends_on_past`: wait for the same task of the previous run; `wait_for_downstream`: also for the tasks directly below it.
      `ignore_first_depends_on_past`: a task that is new waits for nothing.
      `wait_for_past_depends_before_skipping`: a skip waits too.
    - `queue`, `pool`, `pool_slots`: where the task runs. `priority_weight`, `weight_rule`: in which order.
      `max_active_tis_per_dag`, `max_active_tis_per_dagrun`: how many of its instances run at a time.
      `exclusive`: the next try starts only after every process of this one has ended.
    - `params`: its inputs, see Param. `inlets`, `outlets`: the assets that it reads and updates.
    - `do_xcom_push`: store the result. `multiple_outputs`: store each entry of a dict under its own key as well.
      `map_index_template`: a template for the name of each instance of a mapped task.
      `render_template_as_native_obj`: whether templates give Python objects; None takes that of the DAG.
    - `on_execute_callback`, `on_success_callback`, `on_failure_callback`, `on_retry_callback`, `on_skipped_callback`: functions
      that take the context, one or a list. `pre_execute`, `post_execute`: called before and after `execute`, in the worker.
    - `email`: one or more addresses, for emails unless `email_on_failure` or `email_on_retry` is False.
    - `owner`, `doc`, `doc_md`, `doc_json`, `doc_yaml`, `doc_rst`, `task_display_name`: for people. `logger_name`: that of `log`.
      `allow_nested_operators` is accepted as in Airflow and has no effect.

    A wrong or unknown argument raises DagError with the line of the author.
    """

    @classmethod
    def partial(cls, **given: Any) -> OperatorPartial[Self]:
        """The arguments that all instances of a mapped task share; `.expand(...)` adds those that differ."""
        return OperatorPartial(cls, given)


BaseOperator = Operator
