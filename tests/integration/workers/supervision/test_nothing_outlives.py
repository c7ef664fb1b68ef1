"""Processes of a killed worker are gone before its tasks run again, and a child that dies while it starts is replaced."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import is_running
from support.waiting import eventually

pytestmark = pytest.mark.own_program

#: A task that starts a process of its own session, and a daemon that its parents have left.
STARTING = """
import os, subprocess, sys, time
@dag(schedule=None)
def d():
    @task
    def t():
        one = subprocess.Popen(["sleep", "600"], start_new_session=True)
        two = subprocess.run(["sh", "-c", "setsid sleep 601 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True).stdout
        with open({pids!r}, "w") as file:
            print(os.getpid(), one.pid, two.strip(), file=file)
        time.sleep(600)
    t()
d()
"""
#: A task that forks, without an exec, a child and a daemon of its own session whose parent is gone, and at once kills its worker.
FORKING = """
import os, signal, time
@dag(schedule=None)
def d():
    @task
    def t():
        ours, theirs = os.pipe()
        one = os.fork()
        if one == 0:
            time.sleep(600)
        middle = os.fork()
        if middle == 0:
            os.setsid()
            if (daemon := os.fork()) != 0:
                os.write(theirs, str(daemon).encode())
                os._exit(0)
            os.closerange(0, 256)
            time.sleep(600)
        two = os.read(ours, 100).decode()
        with open({pids!r}, "w") as file:
            print(one, two, file=file)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    t()
d()
"""
#: A worker whose first pool child dies before it is ready.
DYING = """
import os, sys
from celery import signals
def die(**_):
    try:
        os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), 9)
signals.worker_process_init.connect(die, weak=False)
from scheduler.settings import Settings
from workers.celery_worker import app
sys.exit(app.run(Settings.load(), queues=["default"], concurrency=2, name="w0"))
"""
#: A worker whose new pool processes, once there is a folder for their process IDs, begin only after its death.
LATE = """
import os, sys, time
worker, folder = os.getpid(), sys.argv[1]
def begin_late():
    if os.path.isdir(folder):
        open(os.path.join(folder, str(os.getpid())), "w").close()
        while os.getppid() == worker:
            time.sleep(0.01)
os.register_at_fork(after_in_child=begin_late)
from scheduler.settings import Settings
from workers.celery_worker import app
sys.exit(app.run(Settings.load(), queues=["default"], concurrency=2, name="w0"))
"""


def pool_processes(worker: int, count: int) -> list[int]:
    """The process IDs of the pool of this worker; none before there are `count`."""
    found = [child.pid for child in psutil.Process(worker).children() if child.name() != "task-killer"]
    return found if len(found) == count else []


@contextmanager
def program(bench: Any, source: str, argument: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A program on the servers of the bench, and the file with its output. It gets SIGTERM after the block."""
    output_path = bench.folder / "output.txt"
    environment = {
        **os.environ, "PACELINE_HOME": str(bench.settings.home), "PACELINE_DAGS_FOLDER": str(bench.settings.dags_folder),
        "PACELINE_DATABASE_URL": bench.settings.database_url, "PACELINE_BROKER_URL": bench.settings.broker_url,
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    with output_path.open("wb") as output, subprocess.Popen(
        [sys.executable, "-P", "-c", source, argument], env=environment, stdout=output, stderr=output
    ) as process:  # fmt: skip
        try:
            yield process, output_path
        finally:
            process.terminate()


def test_processes_of_tasks_die_with_their_killed_worker(bench: Any) -> None:
    pids = bench.folder / "pids"
    worker = bench.worker(concurrency=2)
    bench.dag(STARTING.format(pids=str(pids)))
    bench.scenario.trigger("d", run_id="r1")

    def started() -> list[int]:
        bench.scenario.turn()
        return [int(pid) for pid in pids.read_text().split()] if pids.exists() else []

    eventually(lambda: len(started()) == 3, timeout=60, message=lambda: bench.output)
    below = [child.pid for child in psutil.Process(worker.process.pid).children(recursive=True)]
    assert len(below) >= 5, "two pool children, what ends them, and what the task started"

    worker.signal(signal.SIGKILL)
    worker.process.wait()

    eventually(lambda: not any(map(is_running, {*below, *started()})))


def test_a_process_forked_just_before_its_worker_was_killed_dies_with_it(bench: Any) -> None:
    """Before anything looked at the processes below the worker."""
    pids = bench.folder / "pids"
    worker = bench.worker(concurrency=1)
    bench.dag(FORKING.format(pids=str(pids)))
    bench.scenario.trigger("d", run_id="r1")

    def killed() -> bool:
        bench.scenario.turn()
        return worker.process.poll() is not None

    eventually(killed, timeout=60, message=lambda: bench.output)
    forked = [int(pid) for pid in pids.read_text().split()]
    try:
        eventually(lambda: not any(map(is_running, forked)), timeout=15)
    finally:
        for pid in filter(is_running, forked):
            os.kill(pid, signal.SIGKILL)


def test_the_pool_child_of_an_idle_worker_dies_with_it_although_its_pipes_stay_open(bench: Any) -> None:
    """The kernel ends it: without that it would end because its pipes close, or by the process that ends tasks."""
    worker = bench.worker(concurrency=1)
    bench.run("@dag(schedule=None)\ndef d():\n    @task\n    def t(): pass\n    t()\nd()\n")
    left = {child.pid: child.name() for child in psutil.Process(worker.process.pid).children(recursive=True)}
    assert len(left) == 2, "a pool child, which has begun, and what ends the tasks"
    pipes = [fd for fd in Path(f"/proc/{worker.process.pid}/fd").iterdir() if stat.S_ISFIFO(fd.stat().st_mode)]
    held = [os.open(fd, os.O_RDWR) for fd in pipes]
    (killer,) = (pid for pid, name in left.items() if name == "task-killer")
    os.kill(killer, signal.SIGKILL)

    worker.signal(signal.SIGKILL)
    worker.process.wait()

    try:
        eventually(lambda: not any(map(is_running, left)), timeout=15)
    finally:
        for pid in filter(is_running, left):
            os.kill(pid, signal.SIGKILL)
        for fd in held:
            os.close(fd)


def test_a_worker_that_shuts_down_cleanly_leaves_no_process(bench: Any) -> None:
    worker = bench.worker(concurrency=2)
    below = [child.pid for child in psutil.Process(worker.process.pid).children(recursive=True)]

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert not any(map(is_running, below))


def test_a_pool_process_that_begins_after_the_death_of_its_worker_ends(bench: Any, tmp_path: Path) -> None:
    """Each of the two holds the pipe that the other reads, so neither pipe closes. Nothing else may end them here."""
    began = tmp_path / "began"
    with program(bench, LATE, str(began)) as (worker, output):
        pool = eventually(lambda: pool_processes(worker.pid, 2), timeout=60, message=output.read_text)
        began.mkdir()
        for pid in pool:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len([*began.iterdir()]) == 2, timeout=60, message=output.read_text)
        (killer,) = (child for child in psutil.Process(worker.pid).children() if child.name() == "task-killer")
        killer.kill()
        worker.kill()
        worker.wait()

    late = [int(file.name) for file in began.iterdir()]
    try:
        eventually(lambda: not any(map(is_running, late)), timeout=15)
    finally:
        for pid in filter(is_running, late):
            os.kill(pid, signal.SIGKILL)


def test_a_pool_child_that_dies_while_it_starts_is_replaced(bench: Any, tmp_path: Path) -> None:
    with program(bench, DYING, str(tmp_path / "died")) as (worker, output):
        bench.dag("@dag(schedule=None)\ndef d():\n    @task\n    def t(): pass\n    t()\nd()\n")
        run = bench.scenario.trigger("d", run_id="r1")
        eventually(lambda: (tmp_path / "died").exists(), timeout=60, message=output.read_text)
        bench.wait(run)
        assert bench.scenario.states(run) == {"t": "success"}
        assert worker.poll() is None
    assert worker.returncode == 0
    assert "Traceback" not in output.read_text(), output.read_text()
