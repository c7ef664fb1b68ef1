"""The conf and the date that TriggerDagRunOperator takes, and names of Airflow 2."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from paceline import DAG
from paceline.airflow import hook
from paceline.exceptions import ConflictError, DagError, FailTask, SkipTask
from paceline.operators import TriggerDagRunOperator
from paceline.sensors import ExternalTaskMarker

PARIS = ZoneInfo("Europe/Paris")


class Ti:
    """Notes the run that an operator triggers."""

    dag_id = "d"
    paused = False

    def trigger_run(self, dag_id: str, **given: Any) -> str:
        self.given = given
        return "r"

    def is_paused(self, dag_id: str) -> bool:
        return self.paused

    def xcom_push(self, *_: Any) -> None: ...


def triggered(**arguments: Any) -> Any:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=PARIS)):
        operator = TriggerDagRunOperator(task_id="t", trigger_dag_id="child", **arguments)
    ti = Ti()
    operator.execute({"ti": ti, "task": operator})
    return ti.given


@pytest.mark.parametrize(("conf", "expected"), [('{"a": 1}', {"a": 1}), ({"a": [1]}, {"a": [1]}), (None, {}), ("{}", {})])
def test_conf_is_a_dict_or_json_text(conf: Any, expected: Any) -> None:
    assert triggered(conf=conf)["conf"] == expected


@pytest.mark.parametrize("conf", ["{'a': 1}", "[1]", [1], {"a": datetime(2026, 1, 1, tzinfo=UTC)}])
def test_another_conf_fails_with_the_value(conf: Any) -> None:
    with pytest.raises(FailTask, match="conf must be a dict"):
        triggered(conf=conf)


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01T06:00:00", datetime(2026, 3, 1, 6, tzinfo=UTC)),
        ("2026-03-01T06:00:00+00:00", datetime(2026, 3, 1, 6, tzinfo=UTC)),
        (datetime(2026, 3, 1, 6, tzinfo=UTC), datetime(2026, 3, 1, 6, tzinfo=UTC)),
        (None, None),
    ],
)
def test_a_date_without_an_offset_is_in_the_default_time_zone(date: Any, expected: Any) -> None:
    assert triggered(logical_date=date)["logical_date"] == expected


@pytest.mark.parametrize(("given", "skips"), [(True, True), ("{{ params.x }}True", True), ("{{ 'False' }}", False)])
def test_a_flag_may_be_a_template(given: Any, skips: bool) -> None:
    class Existing(Ti):
        def trigger_run(self, dag_id: str, **given: Any) -> str:
            raise ConflictError("the run exists")

    with DAG("d", schedule=None, params={"x": ""}):
        task = TriggerDagRunOperator(task_id="t", trigger_dag_id="child", skip_when_already_exists=given)
    operator: Any = task.render({"params": {"x": ""}})

    with pytest.raises(SkipTask if skips else ConflictError):
        operator.execute({"ti": Existing(), "task": operator})


def test_a_flag_that_is_neither_true_nor_false_fails() -> None:
    with DAG("d", schedule=None):
        operator: Any = TriggerDagRunOperator(task_id="t", trigger_dag_id="child", wait_for_completion="{{ 'maybe' }}").render({})

    with pytest.raises(FailTask, match="wait_for_completion must be True or False, not 'maybe'"):
        operator.execute({"ti": Ti(), "task": operator})


def test_no_allowed_states_are_the_default_as_in_airflow() -> None:
    with DAG("d", schedule=None):
        operator = TriggerDagRunOperator(task_id="t", trigger_dag_id="child", allowed_states=[])

    assert operator.allowed_states == ["success"]


def test_a_paused_dag_may_fail_the_task() -> None:
    with DAG("d", schedule=None):
        operator = TriggerDagRunOperator(task_id="t", trigger_dag_id="child", fail_when_dag_is_paused=True)
    ti = Ti()
    operator.execute({"ti": ti, "task": operator})
    ti.paused = True

    with pytest.raises(FailTask, match="DAG 'child' is paused"):
        operator.execute({"ti": ti, "task": operator})


@pytest.fixture
def hooked() -> Iterator[None]:
    hook.install()
    yield
    hook.remove()


def test_execution_date_is_the_logical_date_in_unchanged_files(hooked: None) -> None:
    with DAG("d", schedule=None):
        trigger: Any = TriggerDagRunOperator(task_id="t", trigger_dag_id="child", execution_date="{{ ds }}")  # type: ignore[call-arg]
        marker: Any = ExternalTaskMarker(task_id="m", external_dag_id="c", external_task_id="e", execution_date="{{ ds }}")  # type: ignore[call-arg]

    assert (trigger.logical_date, marker.logical_date) == ("{{ ds }}", "{{ ds }}")


def test_the_error_for_execution_date_names_the_new_argument() -> None:
    with DAG("d", schedule=None), pytest.raises(DagError, match="'execution_date' does not exist any more: write logical_date"):
        TriggerDagRunOperator(task_id="t", trigger_dag_id="child", execution_date="{{ ds }}")  # type: ignore[call-arg]
