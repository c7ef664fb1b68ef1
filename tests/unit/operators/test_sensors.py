"""Sensors: the time of the next poke, timeouts, and skips."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from support.tries import NOON, Ti, run

from paceline import DAG, task
from paceline.authoring import deferral
from paceline.authoring.connection import Connection, Connections
from paceline.authoring.deferral import TaskRescheduled
from paceline.exceptions import (
    DagError,
    ExternalTaskFailedError,
    FailTask,
    NotFoundError,
    PacelineError,
    SensorTimeout,
    SkipTask,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
    TaskTimeout,
)
from paceline.operators import BaseOperator, TriggerDagRunOperator
from paceline.sensors import (
    BashSensor,
    DateTimeSensor,
    DayOfWeekSensor,
    ExternalTaskSensor,
    FileSensor,
    PokeReturnValue,
    PythonSensor,
    TimeDeltaSensor,
    TimeSensor,
    WaitSensor,
)
from paceline.triggers import BaseTrigger, DateTimeTrigger, ExternalTrigger, FileTrigger, TimeDeltaTrigger, TriggerEvent


@pytest.fixture(autouse=True)
def inside_a_dag() -> Iterator[None]:
    with DAG("d", start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        yield


def python(poke: Any, **arguments: Any) -> PythonSensor:
    return PythonSensor(task_id="s", python_callable=poke, **arguments)


def test_a_sensor_looks_until_it_is_true() -> None:
    answers = [False, 0, PokeReturnValue(False, "no"), PokeReturnValue(True, {"a": 1})]

    result, _ = run(python(lambda: answers.pop(0), poke_interval=0))

    assert (result, answers) == ({"a": 1}, [])


def test_in_mode_reschedule_it_gives_its_worker_back_and_counts_its_pokes() -> None:
    sensor = python(lambda: False, mode="reschedule", poke_interval=7, timeout=60)

    with pytest.raises(TaskRescheduled) as first:
        run(sensor)
    with pytest.raises(TaskRescheduled) as second:
        run(sensor, Ti("s", resume=first.value.resume, clock=NOON + timedelta(seconds=50)))

    assert [(one.value.delay_s, one.value.resume) for one in (first, second)] == [(7, {"pokes": 1}), (7, {"pokes": 2})]


def test_its_timeout_counts_from_the_first_poke_of_the_try() -> None:
    sensor = python(lambda: False, mode="reschedule", timeout=60)

    with pytest.raises(SensorTimeout, match="not true within 60 s"):
        run(sensor, Ti("s", resume={"pokes": 3}, clock=NOON + timedelta(seconds=61)))
    assert issubclass(SensorTimeout, FailTask), "a timeout is not retried"


@pytest.mark.parametrize(
    ("raised", "option", "ends"),
    [
        (ValueError("v"), {}, ValueError),
        (ValueError("v"), {"soft_fail": True}, ValueError),
        (ValueError("v"), {"never_fail": True}, SkipTask),
        (ValueError("v"), {"silent_fail": True}, SensorTimeout),
        (ValueError("v"), {"silent_fail": True, "soft_fail": True}, SkipTask),
        (ValueError("v"), {"silent_fail": True, "never_fail": True}, SkipTask),
        (FailTask("f"), {}, FailTask),
        (FailTask("f"), {"silent_fail": True}, FailTask),
        (FailTask("f"), {"silent_fail": True, "soft_fail": True}, SkipTask),
        (FailTask("f"), {"soft_fail": True}, SkipTask),
        (FailTask("f"), {"never_fail": True}, SkipTask),
        (TaskTimeout("t"), {}, TaskTimeout),
        (TaskTimeout("t"), {"soft_fail": True}, SkipTask),
        (SkipTask("s"), {"silent_fail": True}, SkipTask),
        (None, {}, SensorTimeout),
        (None, {"soft_fail": True}, SkipTask),
        (None, {"never_fail": True}, SkipTask),
    ],
)
def test_how_an_error_or_a_timeout_ends_a_sensor(raised: Exception | None, option: dict[str, bool], ends: type) -> None:
    def poke() -> bool:
        if raised is not None:
            raise raised
        return False

    with pytest.raises(ends) as error:
        run(python(poke, timeout=0, poke_interval=0, **option))
    assert type(error.value) is ends


def test_the_backoff_doubles_with_jitter_up_to_max_wait_and_the_timeout() -> None:
    sensor = python(bool, poke_interval=8, timeout=1000, exponential_backoff=True)
    capped = PythonSensor(
        task_id="capped", python_callable=bool, poke_interval=8, exponential_backoff=True, max_wait=timedelta(seconds=20)
    )

    for pokes in range(1, 9):
        base = max(int(8 * 2 ** (pokes - 2)), 1)
        wait_s = sensor.wait_s(pokes, 0, "d#s")
        assert base <= wait_s < 2 * base or wait_s == 1000
        assert wait_s == sensor.wait_s(pokes, 0, "d#s"), "the same in any process"
        assert capped.wait_s(pokes, 0, "d#s") <= 20
    assert len({sensor.wait_s(6, 0, f"d#{name}") for name in range(20)}) > 10, "sensors do not look in step"
    assert sensor.wait_s(8, 990.5, "d#s") == 10
    assert sensor.wait_s(5000, 0, "d#s") == 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "rescedule"}, "mode cannot be 'rescedule'; did you mean 'reschedule'"),
        ({"poke_interval": -1}, "poke_interval must be zero or more"),
        ({"soft_fail": True, "never_fail": True}, "only one of soft_fail"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DagError, match=message):
        python(bool, **arguments)


def test_task_sensor_makes_a_sensor_of_a_function() -> None:
    @task.sensor(poke_interval=0, mode="poke")
    def there(path: str, ti: Any = None) -> PokeReturnValue:
        return PokeReturnValue(True, f"{path}{ti.try_number}")

    sensor_task = there("p")

    assert isinstance(sensor_task.operator, PythonSensor)
    assert run(sensor_task.operator)[0] == "p1"


@pytest.mark.parametrize(
    "sensor",
    [
        lambda **more: DateTimeSensor(task_id="s", target_time=NOON + timedelta(hours=1), **more),
        lambda **more: DateTimeSensor(task_id="s", target_time="{{ data_interval_end.replace(hour=13) }}", **more),
        lambda **more: TimeSensor(task_id="s", target_time=time(13), **more),
        lambda **more: TimeDeltaSensor(task_id="s", delta=timedelta(hours=1), **more),
        lambda **more: WaitSensor(task_id="s", time_to_wait=60, **more),
    ],
)
def test_sensors_of_moments(sensor: Any) -> None:
    sensor_task = sensor(mode="reschedule", timeout=9999)

    with pytest.raises(TaskRescheduled):
        run(sensor_task, Ti("s", clock=NOON + timedelta(minutes=59)))
    run(sensor_task, Ti("s", clock=NOON + timedelta(minutes=60)))
    sensor_task.deferrable = True
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor_task, Ti("s", clock=NOON + timedelta(minutes=59)))
    assert deferred.value.trigger.moment == NOON + timedelta(hours=1)
    assert deferred.value.timeout_s == 9999
    run(sensor_task, Ti("s", resume={"method": deferred.value.method_name, "event": "x"}))
    with pytest.raises(SensorTimeout):
        run(sensor_task, Ti("s", resume={"method": deferred.value.method_name, "timed_out": True}))


def test_a_sensor_of_days() -> None:
    assert run(DayOfWeekSensor(task_id="s", week_day={"wednesday"}))[0] is None
    with pytest.raises(TaskRescheduled):
        run(DayOfWeekSensor(task_id="t", week_day="sunday", mode="reschedule"))


def test_a_sensor_of_files(tmp_path: Path) -> None:
    def sensor(name: str, **more: Any) -> FileSensor:
        return FileSensor(task_id=f"s{len(made)}", filepath=str(tmp_path / name), mode="reschedule", **more)

    made: list[FileSensor] = []
    for name in ("a.csv", "*.csv", "folder", "**/a.csv"):
        made.append(sensor(name, recursive=True))
        with pytest.raises(TaskRescheduled):
            run(made[-1])
    (tmp_path / "folder" / "below").mkdir(parents=True)
    with pytest.raises(TaskRescheduled):
        run(made[2])
    (tmp_path / "folder" / "below" / "a.csv").touch()
    (tmp_path / "a.csv").touch()
    for one in made:
        run(one)
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor("later.csv", deferrable=True))
    assert isinstance(deferred.value.trigger, FileTrigger)


@pytest.mark.parametrize(
    ("command", "retry_exit_code", "ends"),
    [("exit 0", None, None), ("exit 3", None, TaskRescheduled), ("exit 3", 3, TaskRescheduled), ("exit 4", 3, FailTask)],
)
def test_a_sensor_of_bash_commands(command: str, retry_exit_code: int | None, ends: type[BaseException] | None) -> None:
    with nullcontext() if ends is None else pytest.raises(ends):
        run(BashSensor(task_id="s", bash_command=command, mode="reschedule", retry_exit_code=retry_exit_code))


def external(**arguments: Any) -> ExternalTaskSensor:
    return ExternalTaskSensor(task_id="s", external_dag_id="other", mode="reschedule", **arguments)


@pytest.mark.parametrize(
    ("answers", "arguments", "ends"),
    [
        ([{}], {}, TaskRescheduled),
        ([{"running": 1}], {}, TaskRescheduled),
        ([{"success": 1}], {}, None),
        ([{"failed": 1}], {}, TaskRescheduled),
        ([{"failed": 1}], {"failed_states": ["failed"]}, ExternalTaskFailedError),
        ([{"failed": 1}], {"failed_states": ["failed"], "soft_fail": True}, SkipTask),
        ([{"success": 2, "failed": 1}], {"failed_states": ["failed"]}, ExternalTaskFailedError),
        ([{"success": 2, "running": 1}], {}, TaskRescheduled),
        ([{"skipped": 1}], {"external_task_id": "t", "skipped_states": ["skipped"]}, SkipTask),
        ([{"skipped": 1}], {"external_task_id": "t", "allowed_states": ["success", "skipped"]}, None),
    ],
)
def test_a_sensor_of_other_dags(answers: list[dict[str, int]], arguments: dict[str, Any], ends: type[BaseException] | None) -> None:
    with nullcontext() if ends is None else pytest.raises(ends):
        run(external(**arguments), Ti("s", answers=[answers]))


def test_which_runs_and_tasks_of_the_other_dag_are_meant() -> None:
    def targets(**arguments: Any) -> list[tuple[Any, Any]]:
        with DAG("fresh", start_date=datetime(2026, 1, 1, tzinfo=UTC)):
            ti = Ti("s", answers=[[{"success": 1}]], known={"g.a": ["g"], "g.h.b": ["g.h", "g"], "c": []})
            run(external(**arguments), ti)
        return [(one.logical_date, one.task_id or one.group_id) for one in ti.asked[0]]

    hour = timedelta(hours=1)
    assert targets() == [(NOON, None)]
    assert targets(external_task_ids=["a", "b"], execution_delta=hour) == [(NOON - hour, "a"), (NOON - hour, "b")]
    assert targets(execution_date_fn=lambda date: [date, date + hour]) == [(NOON, None), (NOON + hour, None)]
    assert targets(execution_date_fn=lambda date, context: context["dag_run"].run_after - hour) == [(NOON - hour, None)]
    assert targets(external_task_group_id="g") == [(NOON, "g")]


@pytest.mark.parametrize(
    ("arguments", "known", "message"),
    [
        ({"check_existence": True}, None, "There is no DAG 'other'"),
        ({"check_existence": True, "external_task_id": "t"}, {"u": []}, "no task 't'"),
        ({"external_task_group_id": "g"}, {"u": []}, "no task group 'g'"),
    ],
)
def test_a_sensor_does_not_wait_for_a_missing_dag_or_task(arguments: dict[str, Any], known: Any, message: str) -> None:
    """A retry looks again: the DAG may come with the next deployment."""
    with pytest.raises(NotFoundError, match=message):
        run(external(**arguments), Ti("s", known=known, answers=[[{}]]))


def test_a_deferred_sensor_of_other_dags() -> None:
    sensor = external(deferrable=True, failed_states=["failed"], timeout=60)

    with pytest.raises(TaskDeferred) as deferred:
        run(sensor, Ti("s", answers=[[{}]]))
    path, arguments = deferral.serialized(deferred.value.trigger)
    again = ExternalTrigger(**deferral.decode(arguments))

    assert (path, again.targets[0].logical_date, deferred.value.timeout_s) == ("paceline.triggers.ExternalTrigger", NOON, 60)
    run(sensor, Ti("s", resume={"method": "execute_complete", "event": {"verdict": "done"}}))
    with pytest.raises(ExternalTaskFailedError, match="failed_states"):
        run(sensor, Ti("s", resume={"method": "execute_complete", "event": {"verdict": "failed"}}))


def test_a_run_of_another_dag_is_triggered_and_waited_for() -> None:
    trigger = TriggerDagRunOperator(
        task_id="t", trigger_dag_id="other", trigger_run_id="{{ run_id }}-x", conf={"a": "{{ run_id }}"}, logical_date=NOON,
        wait_for_completion=True, poke_interval=0,
    )  # fmt: skip

    _, ti = run(trigger, Ti("t", answers=[[{"queued": 1}], [{"running": 1}], [{"success": 1}]]))

    asked = {"dag_id": "other", "run_id": "r-x", "logical_date": NOON, "conf": {"a": "r"}, "reset": False}
    assert ti.triggered == [{**asked, "adopt_unless": ["failed"]}], "a retry adopts its own run, unless that one has failed"
    assert (ti.pushed, ti.answers) == ({"trigger_run_id": "r-x"}, [])
    with pytest.raises(ExternalTaskFailedError, match="'r-x' of DAG 'other' ended in one of failed"):
        run(trigger, Ti("t", answers=[[{"failed": 1}]]))
    trigger.deferrable = True
    with pytest.raises(TaskDeferred) as deferred:
        run(trigger, Ti("t"))
    resume = {"method": "execute_complete", "kwargs": deferred.value.kwargs, "event": {"verdict": "failed"}}
    with pytest.raises(ExternalTaskFailedError, match="'r-x' of DAG 'other'"):
        run(trigger, Ti("t", resume=resume))


class Custom(BaseOperator):
    """Defers, and goes on in `go_on`."""

    def execute(self, context: Any) -> None:
        self.defer(trigger=DateTimeTrigger(NOON), method_name="go_on", kwargs={"since": NOON}, timeout=timedelta(seconds=3))

    def go_on(self, context: Any, event: Any, since: datetime) -> Any:
        return event, since, context["run_id"]


def test_a_deferred_operator_continues_with_the_event_and_its_kwargs() -> None:
    operator = Custom(task_id="c")

    with pytest.raises(TaskDeferred) as deferred:
        run(operator)
    deferral_request = deferred.value
    resume = {"method": deferral_request.method_name, "kwargs": deferral.encode(deferral_request.kwargs, "kwargs"), "event": [1]}

    assert run(operator, Ti("c", resume=resume))[0] == ([1], NOON, "r")
    assert deferral_request.timeout_s == 3
    with pytest.raises(TaskDeferralTimeout):
        run(operator, Ti("c", resume={"method": "go_on", "timed_out": True}))
    with pytest.raises(TaskDeferralError, match="boom"):
        run(operator, Ti("c", resume={"method": "go_on", "error": "boom"}))
    with pytest.raises(PacelineError, match="has no such method"):
        operator.defer(trigger=DateTimeTrigger(NOON), method_name="nope")


class Waits:
    """No BaseTrigger, but it can be awaited."""

    def __init__(self, value: int) -> None:
        self.value = value

    async def wait(self) -> int:
        return self.value


class Unstorable(BaseTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "x.Y", {"a": object()}


def test_a_deferral_takes_only_storable_triggers() -> None:
    assert deferral.serialized(Waits(3)) == (f"{__name__}.Waits", {"value": 3})
    assert asyncio.run(deferral.first_event(Waits(3))) == 3
    assert deferral.serialized(TimeDeltaTrigger(timedelta(hours=1)))[0] == "paceline.triggers.DateTimeTrigger"
    for wrong, message in (
        (Waits, "not the class Waits"),
        (7, "not 7"),
        (Unstorable(), r'arguments of Unstorable\["a"\] is of type object'),
        (type("Local", (Waits,), {"__qualname__": "f.<locals>.Local"})(1), "inside a function"),
    ):
        with pytest.raises(PacelineError, match=message):
            deferral.serialized(wrong)


def test_triggers_fire(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    assert asyncio.run(deferral.first_event(DateTimeTrigger(NOON - timedelta(days=9999)))) == NOON - timedelta(days=9999)
    assert asyncio.run(deferral.first_event(FileTrigger(str(tmp_path / "?")))) == str(tmp_path / "a")
    assert TriggerEvent(1) == TriggerEvent(1) != TriggerEvent(2)


@pytest.mark.parametrize("value", [None, 1, "a", [1, {"b": NOON}], {"d": timedelta(seconds=1.5), "e": NOON.date()}])
def test_values_that_a_deferral_stores_come_back(value: Any) -> None:
    assert deferral.decode(deferral.encode(value, "value")) == value


def test_a_function_that_triggers_several_runs_adopts_none() -> None:
    @task
    def several(ti: Any = None, **context: Any) -> None:
        with DAG("inner"):
            for number in range(2):
                TriggerDagRunOperator(task_id=f"t{number}", trigger_dag_id="other").execute({**context, "ti": ti})

    _, ti = run(several().operator)

    assert [one["adopt_unless"] for one in ti.triggered] == [None, None]


@pytest.mark.parametrize("mode", ["poke", "reschedule", "deferrable"])
def test_a_retry_does_not_start_the_timeout_again(mode: str) -> None:
    arguments: dict[str, Any] = {"deferrable": True} if mode == "deferrable" else {"mode": mode}
    sensor = DateTimeSensor(task_id="s", target_time=NOON + timedelta(days=1), timeout=60, poke_interval=0, retries=3, **arguments)
    retried: dict[str, Any] = {"try_number": 2, "max_tries": 3, "start_date": NOON + timedelta(seconds=50), "first": NOON}

    if mode != "poke":
        with pytest.raises((TaskRescheduled, TaskDeferred)) as waits:
            run(sensor, Ti("s", clock=NOON + timedelta(seconds=55), **retried))
        assert getattr(waits.value, "timeout_s", 5) == 5
    with pytest.raises(SensorTimeout, match="not true within 60 s"):
        run(sensor, Ti("s", clock=NOON + timedelta(seconds=61), **retried))


@pytest.mark.parametrize(
    ("resume", "option", "ends"),
    [
        # As when a poke crashes: that is no answer about the condition, and is retried.
        ({"error": "ValueError: HTTP 500"}, {"soft_fail": True}, TaskDeferralError),
        ({"error": "ValueError: HTTP 500"}, {"never_fail": True}, SkipTask),
        ({"error": "ValueError: HTTP 500"}, {}, TaskDeferralError),
        ({"timed_out": True}, {"soft_fail": True}, SkipTask),
        ({"timed_out": True}, {}, SensorTimeout),
    ],
)
def test_how_a_crash_or_a_timeout_of_its_trigger_ends_a_sensor(
    resume: dict[str, Any], option: dict[str, bool], ends: type[BaseException]
) -> None:
    sensor = DateTimeSensor(task_id="s", target_time=NOON, deferrable=True, **option)

    with pytest.raises(ends) as caught:
        run(sensor, Ti("s", resume={"method": "execute_complete", **resume}))
    assert caught.type is ends


def test_soft_fail_means_the_same_after_a_deferral_as_in_a_poke() -> None:
    class Refuses(DateTimeSensor):
        def execute_complete(self, context: Any, event: Any = None) -> None:
            raise FailTask("no such thing")

    fired = {"method": "execute_complete", "event": None}
    with pytest.raises(SkipTask, match="no such thing"):
        run(Refuses(task_id="s", target_time=NOON, deferrable=True, soft_fail=True), Ti("s", resume=fired))


class Folder:
    """The connections that a FileSensor reads."""

    def __init__(self, **paths: Path) -> None:
        self.paths = paths

    def connection(self, conn_id: str) -> Connection | None:
        return (
            Connection(conn_id=conn_id, conn_type="fs", extra=json.dumps({"path": str(self.paths[conn_id])}))
            if conn_id in self.paths
            else None
        )


def test_a_relative_path_starts_at_the_folder_of_the_connection(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()

    def poked(sensor: FileSensor, **paths: Path) -> bool:
        return sensor.poke({"conn": Connections(Folder(**paths))})

    assert poked(FileSensor(task_id="named", filepath="a.csv", fs_conn_id="landing"), landing=tmp_path)
    assert poked(FileSensor(task_id="default", filepath="a.csv"), fs_default=tmp_path)
    assert poked(FileSensor(task_id="none", filepath=str(tmp_path / "a.csv")[1:]))
    with pytest.raises(NotFoundError, match="landing"):
        poked(FileSensor(task_id="lost", filepath="a.csv", fs_conn_id="landing"))


@pytest.mark.parametrize(
    ("given", "minutes"), [(90, 90), ("{{ params.wait }}", 5), (timedelta(hours=1), 60), ("{{ 'soon' }}", None)]
)
def test_a_span_is_a_timedelta_or_minutes_and_may_be_a_template(given: Any, minutes: int | None) -> None:
    delta: Any = TimeDeltaSensor(task_id="delta", delta=given).render({"params": {"wait": 5}})
    wait: Any = WaitSensor(task_id="wait", time_to_wait=given).render({"params": {"wait": 5}})

    if minutes is None:
        with pytest.raises(FailTask, match="delta 'soon' must be a timedelta or a number of minutes"):
            delta.moment({"data_interval_end": NOON})
    else:
        assert delta.moment({"data_interval_end": NOON}) == NOON + timedelta(minutes=minutes)
        assert wait.moment({"ti": Ti("wait", start_date=NOON)}) == NOON + timedelta(minutes=minutes)


def test_an_external_sensor_takes_results_of_tasks_and_the_old_name_of_its_interval() -> None:
    @task
    def names() -> list[str]:
        return ["a", "b"]

    sensor = ExternalTaskSensor(task_id="s", external_dag_id=names(), external_task_ids=names(), poll_interval=7)

    assert sensor.poke_interval == 7
    assert sensor.upstream_task_ids == {"names", "names__1"}


def test_a_run_without_a_logical_date_counts_by_the_time_at_which_it_was_due() -> None:
    due = {"logical_date": None, "dag_run": SimpleNamespace(run_after=NOON), "ti": Ti("s", clock=NOON + timedelta(days=1))}

    assert DayOfWeekSensor(task_id="s", week_day=NOON.strftime("%A"), use_task_logical_date=True).poke(due)


def test_text_without_an_offset_is_in_the_default_time_zone() -> None:
    with DAG("berlin", start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))):
        sensor = DateTimeSensor(task_id="s", target_time="2026-03-01T06:00:00")

    assert sensor.moment({}) == datetime(2026, 3, 1, 6, tzinfo=UTC)
