"""The classes of differences from Apache Airflow. The section Differences of docs/reference/airflow-parity.md explains each."""

from enum import StrEnum


class Difference(StrEnum):
    """A class of differences, by its title on the page. `make test-airflow` accepts a difference only if it belongs to one."""

    BRANCH_IN_MAPPED_GROUP = "A branch in a mapped group"
    SETUP_IN_BLOCK = "A setup or teardown inside a `with setup >> teardown:` block"
    SKIP_AND_FAILURE = "A skip and a failure above one task"
    MAPPED_OVER_RESULT = "A task that is mapped over a result"
    TEARDOWN_AFTER_FAILURE = "A teardown with `on_failure_fail_dagrun` after a failure"
    FAIL_FAST = "`fail_fast`"
    RUNS_IN_MEMORY = "Runs in memory"
    TEMPLATES = "Templates"
    COROUTINES_AND_STATE = "Coroutines and `task_state_store`"
    ASSETS_OF_ONE_URI = "Assets of one URI"
    CONTEXT_IN_ENVIRONMENT = "The context in `os.environ`"
    CONDITIONS = "Results in conditions"
    GENERATORS = "Generators"
    CLOCK_CHANGES = "Clock changes"
    MONTHS = "Months"
    DATA_INTERVALS = "Data intervals with catchup and without `start_date`"
    MISSED_RUNS = "Missed runs without catchup"
    LATER_START = "A later `start_date`"
    REMOVED = "Removed task instances"
    NO_LOGICAL_DATE = "Runs without a logical date"
    FAILED_IN_AVERAGE = "Failed runs in averages"
    SENSOR_TIMEOUT = "The timeout of a sensor over its retries"
    CRASHED_TRIGGER = "A trigger that crashes"
    TRIGGERED_RUN = "Retries of TriggerDagRunOperator"
