"""Reading and storing the progress of a Spark task: when, how often, and that no error of it reaches the task."""

import threading
from collections.abc import Mapping
from typing import Any

from support.waiting import eventually

from workers.process import progress
from workers.process.progress import Progress, Reporter

STAGE = {
    "status": "COMPLETE", "stageId": 1, "name": "count at d.py:3", "numTasks": 4, "numCompleteTasks": 4, "numFailedTasks": 0,
    "inputRecords": 10, "inputBytes": 100, "outputRecords": 1, "outputBytes": 8, "diskBytesSpilled": 0,
}  # fmt: skip


class Written:
    def __init__(self, error: Exception | None = None) -> None:
        self.all: list[Mapping[str, Any]] = []
        self.closed = threading.Event()
        self._error = error

    def write(self, found: Mapping[str, Any]) -> None:
        self.all.append(found)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.closed.set()


def test_a_task_that_ends_sooner_is_not_looked_at() -> None:
    written, looked = Written(), []
    reporter = Reporter(lambda: looked.append(1), written, first_s=60)  # type: ignore[func-returns-value]

    reporter.start()
    reporter.close()

    assert not reporter.is_alive()
    assert (looked, written.all) == ([], [])
    assert written.closed.is_set()


def test_progress_is_written_when_it_changes_and_once_more_at_the_end() -> None:
    written, now = Written(), [Progress(tasks=2)]
    reporter = Reporter(lambda: now[0], written, first_s=0.0, every_s=0.01)
    reporter.start()
    eventually(lambda: len(written.all) == 1)

    now[0] = Progress(tasks=2, tasks_done=1)
    eventually(lambda: len(written.all) == 2)
    reporter._every_s = 60
    now[0] = Progress(tasks=2, tasks_done=2)
    reporter.close()

    assert [one["tasks_done"] for one in written.all] == [0, 1, 2]


def test_errors_stay_here() -> None:
    written = Written(error=OSError("the database is away"))
    looks = iter([RuntimeError("no JVM"), None, Progress(tasks=1), Progress(tasks=2)])

    def look() -> Progress | None:
        found = next(looks, Progress(tasks=3))
        if isinstance(found, Exception):
            raise found
        return found

    reporter = Reporter(look, written, first_s=0.0, every_s=0.01)
    reporter.start()

    eventually(lambda: len(written.all) >= 3)
    reporter.close()
    assert not reporter.is_alive()


def test_stages_and_executors_add_up() -> None:
    stages = [
        STAGE,
        STAGE
        | {"status": "ACTIVE", "stageId": 3, "numTasks": 200, "numCompleteTasks": 50, "numFailedTasks": 2, "diskBytesSpilled": 7},
        STAGE | {"status": "PENDING", "stageId": 4},
        STAGE | {"status": "SKIPPED", "stageId": 2},
    ]
    executors = [
        {"id": "driver", "isActive": True},
        {"id": "0", "isActive": False, "removeReason": "Command exited with code 137"},
        {"id": "1", "isActive": False, "removeReason": "Executor killed by driver."},
        {"id": "2", "isActive": True},
    ]

    found = progress.of_stages(stages, executors, ui_url="http://127.0.0.1:4040")

    assert (found.stages, found.stages_done, found.tasks, found.tasks_done, found.tasks_failed) == (2, 1, 204, 54, 2)
    assert (found.rows_read, found.bytes_read, found.rows_written, found.bytes_written) == (20, 200, 2, 16)
    assert (found.bytes_spilled, found.failed_executors, found.ui_url) == (7, 1, "http://127.0.0.1:4040")
    assert found.as_json()["running"] == ({"id": 3, "name": "count at d.py:3", "tasks": 200, "tasks_done": 50},)
