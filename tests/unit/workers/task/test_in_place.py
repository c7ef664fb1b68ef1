"""When a pool process offers to continue with the next task itself, and the pipe through which it reports that."""

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
from workers.supervision.slots import InPlace, InPlaceEvents, InPlaceSeries, Step

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


def begun(running_tasks: RunningTasks, **worker: float) -> InPlaceSeries:
    """A process of the worker that has begun with a message."""
    series = InPlaceSeries(running_tasks.slot(0), **{"seconds": 60} | worker)
    series.begin("message")
    return series


def test_the_parent_sees_the_offer_of_a_process_before_its_report_even_after_its_death() -> None:
    running_tasks = RunningTasks(2)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        series = begun(running_tasks)
        following = series.after(claim(), PLAIN, Ending(S.SUCCESS))
        os.write(writer, b"" if following is None else following.dispatch_id.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)

    with os.fdopen(reader) as answer:
        expected = InPlace(message="message", ti_id=7, dispatch_id="mine", next_dispatch_id=answer.read())
    assert running_tasks.in_place("message") == expected
    assert running_tasks.in_place("another") is None


@pytest.mark.parametrize(
    ("state", "seconds", "task", "offers"),
    [
        (S.SUCCESS, 60, {}, True),
        (S.SKIPPED, 60, {}, True),
        (S.FAILED, 60, {}, False),
        (S.UP_FOR_RETRY, 60, {}, False),
        (S.UP_FOR_RESCHEDULE, 60, {}, False),
        (S.DEFERRED, 60, {}, False),
        # Without a budget, or after its end.
        (S.SUCCESS, 0, {}, False),
        (S.SUCCESS, 1e-9, {}, False),
        # After a Spark task or an exclusive one.
        (S.SUCCESS, 60, {"runtime": "pyspark"}, False),
        (S.SUCCESS, 60, {"runtime": "spark_submit"}, False),
        (S.SUCCESS, 60, {"exclusive": True}, False),
    ],
)
def test_after_which_tasks_a_process_offers_to_continue(state: S, seconds: float, task: dict[str, Any], offers: bool) -> None:
    series, plan = begun(RunningTasks(1), seconds=seconds), dag("d", {"a": [], "b": ["a"]}, options={"a": task})

    found = [series.after(claim(0), plan, Ending(state)) for _ in range(2)]

    assert [one is not None for one in found] == [offers, offers]
    assert len({one.dispatch_id for one in found if one}) == (2 if offers else 0)
    if task:
        assert plan.in_place == {1}
        assert series.after(claim(1), plan, Ending(S.SUCCESS)) is not None


def test_an_offer_is_valid_until_its_worker_stops_or_its_time_is_over() -> None:
    running_tasks = RunningTasks(1)
    stopping, late = begun(running_tasks), begun(RunningTasks(1), seconds=0.1)
    by_stop, by_time = (series.after(claim(), PLAIN, Ending(S.SUCCESS)) for series in (stopping, late))
    assert by_stop is not None and by_time is not None and by_stop.is_allowed()

    running_tasks.drain()

    assert not by_stop.is_allowed()
    assert stopping.after(claim(), PLAIN, Ending(S.SUCCESS)) is None
    eventually(lambda: not by_time.is_allowed())


def test_it_offers_nothing_once_it_has_run_all_tasks_that_a_process_may_run() -> None:
    series = begun(RunningTasks(1), max_tasks=3)
    for _ in range(2):
        assert series.after(claim(), PLAIN, Ending(S.SUCCESS)) is not None
        assert not series.must_be_replaced
        series.go_on(claim())

    assert series.must_be_replaced
    assert series.after(claim(), PLAIN, Ending(S.SUCCESS)) is None


@pytest.mark.parametrize(("map_index", "arguments"), [(-1, "r"), (3, "r [3]")])
def test_the_parent_sees_the_task_that_runs_in_place(map_index: int, arguments: str) -> None:
    running_tasks = RunningTasks(2)
    series = begun(running_tasks)

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


def step(name: str, message: str = "m") -> Step:
    return Step(message=message, seconds=0.5, ti_id=7, dispatch_id=f"of {name}", name=name, arguments="r", started_at=1.5)


def test_steps_arrive_as_they_were_written_in_order() -> None:
    events = InPlaceEvents()
    events.write(step("d.a"))
    events.write(step("d.日本"))

    assert events.read() == [step("d.a"), step("d.日本")]
    assert events.read() == []


def test_lines_of_several_processes_do_not_mix_however_long_the_ids_are() -> None:
    events = InPlaceEvents()
    longest = step(".".join(["日" * 250, "本" * 250]), message="0" * 36)
    events.write(longest)

    assert os.fpathconf(events.reader, "PC_PIPE_BUF") >= len(os.read(events.reader, 100_000))


def test_a_line_is_read_once_it_is_whole() -> None:
    events = InPlaceEvents()
    os.write(events._writer, b'["m", 2, 7, "i"')
    assert events.read() == []
    os.write(events._writer, b', "d.a", "r", 1]\n')

    assert [one.name for one in events.read()] == ["d.a"]


@pytest.mark.parametrize(
    "text",
    [
        b"no JSON", b"{}", b"[]", b'["m", "long", 7, "i", "n", "a", 1]', b'["m", 1, Infinity, "i", "n", "a", 1]', b"\xff",
        b"[[]]", b"1", b"[" * 100_000,
    ],
)  # fmt: skip
def test_output_of_user_code_in_the_pipe_is_dropped(text: bytes) -> None:
    events = InPlaceEvents()
    os.set_blocking(events._writer, True)
    os.write(events._writer, text[:60_000] + b"\n")
    events.write(step("d.a"))

    assert [one.name for one in events.read()] == ["d.a"]


def test_a_full_pipe_delays_no_task() -> None:
    events = InPlaceEvents()
    for _ in range(2000):
        events.write(step("d.a", message="m" * 100))

    assert 0 < len(events.read()) < 2000
