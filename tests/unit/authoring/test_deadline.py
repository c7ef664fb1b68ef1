"""Deadlines of authors: refused values, and their serialized form."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline import DAG, AsyncCallback, DeadlineAlert, DeadlineReference, SyncCallback
from paceline.exceptions import DagError
from paceline.operators import EmptyOperator
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Core, Scheduler

HOUR = timedelta(hours=1)


def late(context: dict[str, Any]) -> None:
    """A callback."""


def serialized(deadline: object) -> SerializedDag:
    with DAG("d", deadline=deadline) as dag:
        EmptyOperator(task_id="a", sla=timedelta(minutes=2))
    data = from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler())
    return SerializedDag.from_json(data.to_json())


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (DeadlineReference.DAGRUN_LOGICAL_DATE, {"reference": "dagrun_logical_date"}),
        (DeadlineReference.DAGRUN_QUEUED_AT, {"reference": "dagrun_queued_at"}),
        (
            DeadlineReference.FIXED_DATETIME(datetime(2026, 1, 1, tzinfo=UTC)),
            {"reference": "fixed_datetime", "at": "2026-01-01T00:00:00+00:00"},
        ),
        (DeadlineReference.AVERAGE_RUNTIME(), {"reference": "average_runtime", "max_runs": 10, "min_runs": 10}),
        (DeadlineReference.AVERAGE_RUNTIME(5, min_runs=2), {"reference": "average_runtime", "max_runs": 5, "min_runs": 2}),
    ],
)
def test_every_reference_reaches_the_scheduler(reference: Any, expected: dict[str, Any]) -> None:
    nothing = {"at": None, "max_runs": None, "min_runs": None, "name": None}

    dag = serialized(DeadlineAlert(reference=reference, interval=HOUR, callback=late))

    assert dag.deadlines == (nothing | expected | {"interval_s": 3600.0},)
    assert dag.tasks[0].sla_s == 120


def test_a_dag_may_have_several_deadlines_and_callbacks_with_arguments() -> None:
    callbacks = [late, SyncCallback(late, kwargs={"text": "late"}), AsyncCallback(late)]

    dag = serialized([DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, HOUR * n, one) for n, one in enumerate(callbacks)])

    assert [deadline["interval_s"] for deadline in dag.deadlines] == [0, 3600, 7200]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: DeadlineAlert("queued_at", HOUR, late), "reference must be a DeadlineReference"),
        (lambda: DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, 3600, late), "interval must be a timedelta"),
        (lambda: DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, HOUR, "module.late"), "callback must be a function"),
        (lambda: SyncCallback("module.late"), "pass the function, not its path"),
        (lambda: DeadlineReference.AVERAGE_RUNTIME(2, min_runs=3), "min_runs is 3 and must not be more than max_runs, 2"),
        (lambda: DAG("d", deadline=HOUR), "deadline must be a DeadlineAlert or a list of them"),
        (lambda: DAG("d", sla_miss_callback="late"), "sla_miss_callback must be a function"),
    ],
)
def test_an_error_names_its_line(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(DagError, match=complaint) as caught:
        make()

    assert caught.value.file == __file__
