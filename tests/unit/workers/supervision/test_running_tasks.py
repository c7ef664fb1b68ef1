"""The shared memory between a worker process and its children, leases of running tasks, and the ends of processes."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from support.processes import is_running
from support.waiting import eventually

from scheduler.store.upkeep.heartbeats import boottime
from workers.supervision import descendants
from workers.supervision.heartbeat import LEASE, cause_of_death, lease_s
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


#: Processes that each start another one in a session of its own as soon as the process above them is killed.
STARTING = """
import os, sys, time
read, write = os.pipe()
ready, tell = os.pipe()
for _ in range(int(sys.argv[1])):
    if not os.fork():
        os.close(write)
        os.write(tell, b".")
        os.read(read, 1)
        os.fork() or os.setsid()
        time.sleep(60)
        os._exit(0)
for _ in range(int(sys.argv[1])):
    os.read(ready, 1)
print("ready", flush=True)
time.sleep(60)
"""
MANY = 40


def of_worker(worker: str, *, exclusive: bool) -> Running:
    return Running(ti_id=1, dispatch_id="d", pid=1, log=os.devnull, exclusive=exclusive, worker=worker)


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with one of its own session below it."""
    process = subprocess.Popen(["sh", "-c", "setsid sleep 600 & sleep 600"])
    eventually(lambda: len(descendants.below(process.pid)) == 2)
    yield process
    process.kill()
    process.wait()


def test_an_exclusive_task_has_a_lease_of_its_own_worker_until_that_ends() -> None:
    running_tasks = RunningTasks(1)
    assert not running_tasks.has_lease("w#1")
    running_tasks.lease("w#1", boottime() + 60)
    assert running_tasks.has_lease("w#1")
    assert not running_tasks.has_lease("w#2"), "it goes on under another id: what was claimed before is no longer its own"
    running_tasks.lease("w#1", boottime() - 0.001)
    assert not running_tasks.has_lease("w#1")


@pytest.mark.parametrize(("exclusive", "unleased"), [(True, 1), (False, 0)])
def test_only_exclusive_tasks_need_a_lease(exclusive: bool, unleased: int) -> None:
    running_tasks = RunningTasks(1)
    running_tasks.slot(0).enter(of_worker("w#1", exclusive=exclusive))

    assert len(running_tasks.unleased()) == unleased
    running_tasks.lease("w#1", boottime() + 60)
    assert running_tasks.unleased() == []


def test_a_lease_ends_before_the_timeout_that_the_database_counts() -> None:
    assert 0.5 < LEASE < 0.9
    assert lease_s(10) == 7.5


def test_a_whole_tree_is_ended_with_all_its_sessions(child: "subprocess.Popen[bytes]") -> None:
    tree = [child.pid, *(one.pid for one in descendants.below(child.pid))]

    assert descendants.end_tree(child.pid, within_s=10)

    assert child.wait() == -signal.SIGKILL
    eventually(lambda: not any(map(is_running, tree)))


def test_nothing_escapes_by_forking_while_its_tree_is_ended() -> None:
    entry = f"_TEST_OF_LEASES={uuid.uuid4().hex}"
    environment = dict([entry.split("=")])
    command = [sys.executable, "-S", "-c", STARTING, str(MANY)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as made:
        assert made.stdout is not None and made.stdout.readline() == b"ready\n"

        gone = descendants.end_tree(made.pid, within_s=30)

    left = [one for one in descendants.with_entry(entry.encode()) if descendants._runs(one)]
    for one in left:
        one.kill()
    assert (gone, left) == (True, [])


def test_processes_started_inside_the_block_end_with_it() -> None:
    def running() -> set[int]:
        return {one.pid for one in descendants.below(os.getpid()) if descendants._runs(one)}

    with subprocess.Popen(["sleep", "600"]) as outside, contextlib.ExitStack() as ending:
        ending.callback(outside.kill)
        before = running()  # servers that other tests share may be among them
        with descendants.ended_after():
            subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"], check=True)
            eventually(lambda: running() - before)
            inside = running() - before

        assert outside.pid in running()
        assert not inside & running()
