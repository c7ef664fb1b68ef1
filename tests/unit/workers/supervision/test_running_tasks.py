"""The shared memory between a worker process and its children."""

import os

import pytest

from workers.supervision.heartbeat import cause_of_death
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import InPlace, Running, Step


def running(dispatch_id: str = "a") -> Running:
    return Running(ti_id=1, dispatch_id=dispatch_id, pid=7, log="/l/é", deadline=1.5)


def test_the_parent_sees_entries_of_a_child_even_after_its_death() -> None:
    running_tasks = RunningTasks(2)
    pid = os.fork()
    if pid == 0:
        running_tasks.slot(1).enter(running())
        os._exit(0)
    os.waitpid(pid, 0)

    assert running_tasks.running() == [running()]
    assert running_tasks.remove("b") is None
    assert running_tasks.remove("a") == running()
    assert running_tasks.running() == []


def test_nothing_runs_after_a_child_has_left() -> None:
    running_tasks = RunningTasks(1)
    slot = running_tasks.slot(0)
    slot.enter(running())

    slot.leave()

    assert running_tasks.running() == []
    assert running_tasks.ask_stop("a", "why") is None


def test_a_stop_reaches_only_the_dispatch_it_was_meant_for() -> None:
    running_tasks = RunningTasks(2)
    running_tasks.slot(0).enter(running("a"))
    running_tasks.slot(1).enter(running("b"))

    assert running_tasks.ask_stop("b", "why") == running("b")

    assert running_tasks.slot(1).take_stop("b") == "why"
    running_tasks.ask_stop("b", "why")
    assert running_tasks.slot(1).take_stop("c") is None


def test_an_unexpected_signal_has_a_reason_of_its_own() -> None:
    assert RunningTasks(1).slot(0).take_stop("a") == "its process received SIGTERM"


def test_children_read_a_new_worker_id() -> None:
    running_tasks = RunningTasks(1)
    running_tasks.worker_id = "w#1"
    slot = running_tasks.slot(0)
    running_tasks.worker_id = "w#2"

    assert slot.worker_id == "w#2"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Worker exited prematurely: signal 9 (SIGKILL) Job: 0.", "the process was killed by SIGKILL (possibly out of memory)"),
        ("Worker exited prematurely: signal 11 (SIGSEGV) Job: 0.", "the process was killed by SIGSEGV"),
        ("Worker exited prematurely: exitcode 3 Job: 0.", "the process exited with code 3"),
        ("RuntimeError('x')", "the worker could not report how the task ended: RuntimeError('x')"),
    ],
)
def test_a_death_has_a_readable_reason(message: str, cause: str) -> None:
    assert cause_of_death(message) == cause


def test_a_dispatch_is_in_progress_from_its_message_to_its_report() -> None:
    running_tasks = RunningTasks(2)
    slot = running_tasks.slot(1)

    slot.take("a")
    assert (running_tasks.in_progress(), running_tasks.claimed()) == ({"a"}, {})
    slot.take("a", 1)
    slot.enter(running("a"))
    slot.leave()
    assert (running_tasks.in_progress(), running_tasks.claimed()) == ({"a"}, {"a": 1})
    slot.put_down()

    assert (running_tasks.in_progress(), running_tasks.claimed()) == (set(), {})


def test_a_task_in_place_is_in_progress_before_its_process_begins_with_it() -> None:
    running_tasks = RunningTasks(2)
    slot = running_tasks.slot(1)
    slot.continues(InPlace(message="m", ti_id=1, dispatch_id="a", next_dispatch_id="b"))
    assert running_tasks.in_progress() == {"b"}

    slot.continued(Step(message="m", seconds=0.1, ti_id=2, dispatch_id="b", name="d.t", arguments="r", started_at=0.0))

    assert running_tasks.in_progress() == set()


def test_a_new_process_has_nothing_of_the_one_that_died_before() -> None:
    running_tasks = RunningTasks(2)
    dead, other = running_tasks.slot(0), running_tasks.slot(1)
    for slot, dispatch_id in ((dead, "a"), (other, "c")):
        slot.take(dispatch_id, 1)
        slot.enter(running(dispatch_id))
        slot.continues(InPlace(message=f"m{dispatch_id}", ti_id=1, dispatch_id=dispatch_id, next_dispatch_id=f"{dispatch_id}+"))

    dead.clear()

    assert running_tasks.running() == [running("c")]
    assert running_tasks.in_progress() == {"c", "c+"}
    assert running_tasks.in_place("ma") is None
    assert running_tasks.in_place("mc") is not None
