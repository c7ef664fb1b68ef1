"""Leases of running tasks, and the ends of processes."""

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
from workers.supervision.heartbeat import LEASE, lease_s
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import Running

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


def running(worker: str, *, exclusive: bool) -> Running:
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
    running_tasks.slot(0).enter(running("w#1", exclusive=exclusive))

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
