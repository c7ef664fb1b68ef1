"""When a pool process offers to continue with the next task itself."""

import os
from datetime import UTC, datetime
from typing import Any

import pytest
from support.scenario import dag
from support.waiting import eventually

from paceline.authoring.arguments import ID_MAX_LENGTH
from paceline.states import TaskState
from scheduler.store.worker.claims import Claim, Ending
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import InPlace, InPlaceEvents, InPlaceSeries

S = TaskState
PLAIN = dag("d", {"a": [], "b": ["a"]})


def claim(task_no: int = 0, map_index: int = -1, **ids: str) -> Claim:
    known = {
        "id": 7,
        "dispatch_id": "mine",
        "task_no": task_no,
        "map_index": map_index,
        "started_at": datetime.fromtimestamp(5, UTC),
    }
    names = {"dag_id": "d", "run_id": "r", "task_id": "t"} | ids
    return Claim(**dict.fromkeys(Claim.__slots__, None) | known | names)  # type: ignore[arg-type]


def process(running_tasks: RunningTasks, **worker: float) -> InPlaceSeries:
    return InPlaceSeries(running_tasks.slot(0), **{"seconds": 60} | worker)


def test_the_parent_sees_the_offer_of_a_process_before_its_report_even_after_its_death() -> None:
    running_tasks = RunningTasks(2)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        series = process(running_tasks)
        series.begin("message")
        following = series.after(claim(), PLAIN, Ending(S.SUCCESS))
        os.write(writer, b"" if following is None else following.dispatch_id.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)

    with os.fdopen(reader) as answer:
        expected = InPlace(message="message", ti_id=7, dispatch_id="mine", next_dispatch_id=answer.read())
    assert running_tasks.in_place("message") == expected
    assert running_tasks.in_place("another") is None


@pytest.mark.parametrize("state", [S.SUCCESS, S.SKIPPED])
def test_it_offers_after_a_task_that_succeeded_or_was_skipped(state: TaskState) -> None:
    series = process(RunningTasks(1))
    series.begin("message")

    first, second = (series.after(claim(), PLAIN, Ending(state)) for _ in range(2))

    assert first is not None
    assert second is not None
    assert first.dispatch_id != second.dispatch_id


@pytest.mark.parametrize("state", [S.FAILED, S.UP_FOR_RETRY, S.UP_FOR_RESCHEDULE, S.DEFERRED])
def test_it_offers_nothing_after_any_other_end(state: TaskState) -> None:
    series = process(RunningTasks(1))
    series.begin("message")

    assert series.after(claim(), PLAIN, Ending(state)) is None


def test_it_offers_nothing_without_a_budget_or_after_its_end() -> None:
    for budget in (0, 1e-9):
        series = process(RunningTasks(1), seconds=budget)
        series.begin("message")
        assert series.after(claim(), PLAIN, Ending(S.SUCCESS)) is None


def test_it_offers_nothing_once_its_worker_stops() -> None:
    running_tasks = RunningTasks(1)
    series = process(running_tasks)
    series.begin("message")

    running_tasks.drain()

    assert series.after(claim(), PLAIN, Ending(S.SUCCESS)) is None


def test_an_offer_is_valid_until_its_worker_stops_or_its_time_is_over() -> None:
    running_tasks = RunningTasks(1)
    stopping, late = process(running_tasks), process(RunningTasks(1), seconds=0.1)
    offers = []
    for series in (stopping, late):
        series.begin("message")
        offers.append(series.after(claim(), PLAIN, Ending(S.SUCCESS)))
    by_stop, by_time = offers
    assert by_stop is not None
    assert by_time is not None
    assert by_stop.is_allowed()

    running_tasks.drain()

    assert not by_stop.is_allowed()
    eventually(lambda: not by_time.is_allowed())


def test_it_offers_nothing_once_it_has_run_all_tasks_that_a_process_may_run() -> None:
    series = process(RunningTasks(1), max_tasks=3)
    series.begin("message")
    for _ in range(2):
        assert series.after(claim(), PLAIN, Ending(S.SUCCESS)) is not None
        assert not series.must_be_replaced
        series.go_on(claim())

    assert series.must_be_replaced
    assert series.after(claim(), PLAIN, Ending(S.SUCCESS)) is None


@pytest.mark.parametrize("special", [{"runtime": "pyspark"}, {"runtime": "spark_submit"}, {"exclusive": True}])
def test_it_offers_nothing_after_a_spark_task_or_an_exclusive_one(special: dict[str, Any]) -> None:
    series = process(RunningTasks(1))
    series.begin("message")
    plan = dag("d", {"a": [], "b": ["a"]}, options={"a": special})

    assert plan.in_place == {1}
    assert series.after(claim(0), plan, Ending(S.SUCCESS)) is None
    assert series.after(claim(1), plan, Ending(S.SUCCESS)) is not None


@pytest.mark.parametrize(("map_index", "arguments"), [(-1, "r"), (3, "r [3]")])
def test_the_parent_sees_the_task_that_runs_in_place(map_index: int, arguments: str) -> None:
    running_tasks = RunningTasks(2)
    series = process(running_tasks)
    series.begin("message")

    series.go_on(claim(map_index=map_index))

    step = running_tasks.step("message")
    assert step is not None
    assert (step.ti_id, step.dispatch_id, step.name, step.arguments, step.started_at) == (7, "mine", "d.t", arguments, 5)
    assert running_tasks.step("another") is None


@pytest.mark.parametrize("wanted", [False, True])
def test_events_are_written_while_they_are_enabled(wanted: bool) -> None:
    running_tasks, events = RunningTasks(1), InPlaceEvents()
    running_tasks.events = wanted
    series = InPlaceSeries(running_tasks.slot(0), seconds=60, events=events)
    series.begin("message")

    series.go_on(claim())

    assert [step.dispatch_id for step in events.read()] == ["mine"] * wanted


def test_the_longest_ids_fit_into_the_shared_memory_and_into_an_event() -> None:
    running_tasks, events = RunningTasks(1), InPlaceEvents()
    running_tasks.events = True
    series = InPlaceSeries(running_tasks.slot(0), seconds=60, events=events)
    series.begin("message")
    longest = "\U0001d49c" * ID_MAX_LENGTH

    series.go_on(claim(dag_id=longest, run_id=longest, task_id=longest))

    (step,) = events.read()
    assert running_tasks.step("message") == step
    assert step.name == f"{longest}.{longest}"
