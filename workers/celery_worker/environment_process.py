"""A process with the Python of the environment of a bundle: it runs the user code of tries for its pool process.

task/elsewhere.py starts it as `python -P -m workers.celery_worker.environment_process DESCRIPTOR PARENT`. It has a connection to
PostgreSQL of its own for what user code reads and writes; the pool process claims and reports.
"""

import os
import signal
import sys
from multiprocessing.connection import Connection

from scheduler.dagfiles import load
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.loaded_versions import LoadedVersions
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import hardening
from scheduler.store.worker.hot_path import HotPath
from workers.process import logs, secrets_backend
from workers.process.guard import Guard
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import InPlaceSeries, Slot
from workers.task import execute
from workers.task.elsewhere import Attempt, Ended, Start
from workers.task.execute import TryRunner
from workers.task.follow import DatabaseStore, Follower


class ToldSlot(Slot):
    """The reasons for stops come from the pool process."""

    def __init__(self, connection: "Connection[Ended, Attempt | str]") -> None:
        super().__init__(RunningTasks(1), 1)
        self._connection = connection
        self._reason: str | None = None

    def begin(self) -> None:
        """Forget the reason for which an earlier try was stopped."""
        self._reason = None

    def take_stop(self, dispatch_id: str) -> str | None:
        while self._connection.poll():
            self._reason = str(self._connection.recv())
        return self._reason


def main() -> None:
    """Run tries until the pool process closes the connection or ends."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    hardening.close()
    hardening.die_with_parent(parent)
    # Outside of user code they come too early or too late. The pool process ends this one.
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, _nothing)
    os.set_inheritable(descriptor, False)
    connection: Connection[Ended | None, Start | Attempt | str] = Connection(descriptor)
    start = connection.recv()
    assert isinstance(start, Start)
    os.environ.update(start.environment)
    secrets_backend.give(start.stored)
    logs.to_stderr(start.settings.logs.format, role="worker")
    load.preload()
    load.configure(start.settings.core.default_timezone, airflow_imports=start.settings.core.airflow_imports)
    slot = ToldSlot(connection)  # type: ignore[arg-type]
    store, runner = _runner(start, slot)
    connection.send(None)
    while True:
        try:
            attempt = connection.recv()
        except EOFError:
            execute.close()
            return
        if isinstance(attempt, Attempt):  # and not the reason of a stop that came too late
            slot.begin()
            store.hot.worker_id = attempt.worker_id
            connection.send(_run(runner, attempt))


def _run(runner: TryRunner, attempt: Attempt) -> Ended:
    claim = attempt.claim
    dag = runner.store.dag(claim.version_id)
    task = dag.tasks[claim.task_no]
    runner.log.open(attempt.path, f"it runs with {sys.executable}", claim)
    try:
        outcome = runner.attempt(claim, dag, task, execute.runtime_of(task.runtime), attempt.path)
        if runner.guard.unfit is not None:
            runner.log.line(runner.guard.unfit, "WARNING")
        return Ended(outcome, runner.guard.unfit)
    finally:
        runner.log.close()


def _runner(start: Start, slot: Slot) -> tuple[DatabaseStore, TryRunner]:
    settings = start.settings
    hot = HotPath(settings, "", start.place)
    # It reports nothing; runs that a task triggers are announced.
    store = DatabaseStore(settings, hot, Follower(hot, Publisher(settings), Wakeups(settings), enabled=False))
    cache = BundleCache.of(settings, StoredContents(lambda work: store.patient(lambda: work(hot)), settings.bundles.code_url))
    return store, TryRunner(
        settings=settings,
        logs_folder=settings.logs_folder,
        store=store,
        files=LoadedVersions(settings.dags_folder, cache),
        slot=slot,
        guard=Guard(own_process=True),
        log=logs.TryLog(json_lines=settings.logs.format == "json"),
        series=InPlaceSeries(slot),
    )


def _nothing(*_: object) -> None:
    """A signal that means nothing now."""


if __name__ == "__main__":
    main()
