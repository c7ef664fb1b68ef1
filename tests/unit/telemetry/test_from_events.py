"""The metrics counted from events, without a database."""

from dataclasses import replace

import pytest

from scheduler.store.read.event_feed import Event
from scheduler.telemetry import event_metrics

EVENT = Event(
    place="(0,1)", at=110.0, dag_run_id=1, task_instance_id=2, try_number=1, from_state="running", to_state="success", actor="w#1",
    reason=None, queued_at=99.0, started_at=100.0, worker="w#1", task_id="t", task_no=0, map_index=-1, queue="q", scheduled_at=98.0,
    dag_id="d", run_id="r", run_type="scheduled", version_id=1, run_after=90.0, run_queued_at=91.0, run_started_at=92.0,
    first_task_at=None,
)  # fmt: skip
RUN = replace(EVENT, task_instance_id=None, task_id=None, from_state="running", queued_at=None, started_at=None, worker=None)


def counted(event: Event) -> dict[str, float]:
    return {metric.name: value for metric, _, value in event_metrics.of_event(event, lambda *_: "PythonOperator")}


def labels(event: Event, name: str) -> tuple[str, ...]:
    return next(labels for metric, labels, _ in event_metrics.of_event(event, lambda *_: "PythonOperator") if metric.name == name)


def test_a_success() -> None:
    assert counted(EVENT) == {
        "ti.finish": 1, "task.duration": 10.0, "celery_task_runtime": 10.0, "ti_successes": 1, "operator_successes": 1,
        "celery_task_succeeded": 1,
    }  # fmt: skip
    assert labels(EVENT, "operator_successes") == ("PythonOperator",)
    assert labels(EVENT, "celery_task_succeeded") == ("d.t", "w", "q")


@pytest.mark.parametrize(
    ("reason", "actor", "names", "exception"),
    [
        ("ValueError: no", "w#1", {"celery.execute_command.failure"}, "ValueError"),
        ("my.errors.Own: no", "w#1", {"celery.execute_command.failure"}, "Own"),
        ("the process was killed by SIGKILL (possibly out of memory)", "w#1",
         {"celery.execute_command.failure", "scheduler.tasks.killed_externally"}, "unknown"),
        ("worker w#1 sent no heartbeat for 10 s", "s#1", {"task_instances_without_heartbeats_killed"}, "unknown"),
    ],
)  # fmt: skip
def test_a_failure_by_its_reason(reason: str, actor: str, names: set[str], exception: str) -> None:
    failed = replace(EVENT, to_state="failed", reason=reason, actor=actor)
    always = {"ti.finish", "task.duration", "celery_task_runtime", "ti_failures", "operator_failures", "celery_task_failed"}

    assert counted(failed).keys() == always | names
    assert labels(failed, "celery_task_failed")[-1] == exception


def test_a_run_by_its_times() -> None:
    started = replace(RUN, from_state="queued", to_state="running", at=93.0)
    ended = replace(RUN, to_state="success", at=112.0, first_task_at=95.0)

    assert counted(started) == {"dagrun.schedule_delay": 3.0}
    assert counted(replace(started, run_type="manual")) == {}
    assert counted(ended) == {
        "dagrun.duration.success": 20.0, "dagrun.first_task_scheduling_delay": 5.0, "dagrun.first_task_start_delay": 4.0
    }  # fmt: skip
    assert counted(replace(ended, run_type="manual")).keys() == {"dagrun.duration.success", "dagrun.first_task_start_delay"}
    assert counted(replace(RUN, from_state=None, to_state="queued", run_type="asset_triggered")) == {"asset.triggered_dagruns": 1}


def test_moves_without_a_worker() -> None:
    assert counted(replace(EVENT, from_state="queued", to_state="scheduled")) == {"scheduler.orphaned_tasks.cleared": 1}
    assert counted(replace(EVENT, from_state="failed", to_state="removed")) == {"task_removed_from_dag": 1}
    assert counted(replace(EVENT, from_state="removed", to_state=None)) == {"task_restored_to_dag": 1}
    assert counted(replace(EVENT, from_state=None, to_state="skipped")) == {}
    assert counted(replace(EVENT, dag_id=None)) == {}
    assert counted(replace(EVENT, task_id=None)) == {}


def test_a_try_that_a_person_stopped() -> None:
    assert counted(replace(EVENT, from_state="shutdown", to_state=None))["celery_task_revoked"] == 1
    assert labels(replace(EVENT, from_state="shutdown", to_state=None), "ti.finish") == ("d", "t", "none")
