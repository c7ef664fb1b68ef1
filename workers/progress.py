"""What a Spark task has done so far: read once a second while it runs, and stored for the command line and the page."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.progress import ProgressWriter
from workers.logs import worker_log

#: A task that ends sooner is not looked at: it costs such a task a thread that only waits.
FIRST_S = 1.5
EVERY_S = 1.0
#: Longest wait for the last look, whose JVM may hang.
LAST_S = 2.0
#: Running stages that are named.
NAMED = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage at work."""

    id: int
    name: str
    tasks: int
    tasks_done: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Of one try of a task: everything its application, or its share of a warm one, has done.

    `stages` counts those that have begun or ended; how many follow is not known before they are planned.
    """

    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    bytes_spilled: int = 0
    failed_executors: int = 0
    application_id: str | None = None
    ui_url: str | None = None
    running: tuple[Stage, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


#: What is known now; None if nothing is yet. Called by another thread than the task's; whatever it raises is ignored.
Look = Callable[[], Progress | None]


class Writer(Protocol):
    def write(self, progress: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def reported(settings: Settings, claim: Claim, look: Look) -> Iterator[None]:
    """Store what `look` finds, from FIRST_S after now on, every EVERY_S and once more at the end."""
    reporter = Reporter(look, ProgressWriter(settings, claim))
    reporter.start()
    try:
        yield
    finally:
        reporter.close()


class Reporter(threading.Thread):
    """Looks and writes until it is closed. Losing an entry harms nobody, so no error of either reaches the task."""

    def __init__(self, look: Look, writer: Writer, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
        super().__init__(name="progress", daemon=True)
        self._look = look
        self._writer = writer
        self._first_s, self._every_s = first_s, every_s
        self._ended = threading.Event()
        self._stored: Progress | None = None
        self._complained = False

    def run(self) -> None:
        try:
            if self._ended.wait(self._first_s):
                return
            self._step()
            while not self._ended.wait(self._every_s):
                self._step()
            self._step()
        finally:
            self._writer.close()

    def close(self) -> None:
        self._ended.set()
        self.join(LAST_S)

    def _step(self) -> None:
        try:
            found = self._look()
            if found is not None and found != self._stored:
                self._writer.write(found.as_json())
                self._stored = found
        except Exception as error:
            if not self._complained:
                self._complained = True
                worker_log.info("progress cannot be told just now: %s", str(error).strip().partition("\n")[0])


def of_stages(stages: list[dict[str, Any]], executors: list[dict[str, Any]], **about: Any) -> Progress:
    """What Spark's REST API (/applications/<id>/stages and /allexecutors), or its own store in the same form, adds up to."""
    begun = [one for one in stages if one["status"] in {"ACTIVE", "COMPLETE", "FAILED"}]
    active = [one for one in begun if one["status"] == "ACTIVE"]
    return Progress(
        stages=len(begun),
        stages_done=sum(one["status"] == "COMPLETE" for one in begun),
        tasks=sum(one["numTasks"] for one in begun),
        tasks_done=sum(one["numCompleteTasks"] for one in begun),
        tasks_failed=sum(one["numFailedTasks"] for one in begun),
        rows_read=sum(one["inputRecords"] for one in begun),
        bytes_read=sum(one["inputBytes"] for one in begun),
        rows_written=sum(one["outputRecords"] for one in begun),
        bytes_written=sum(one["outputBytes"] for one in begun),
        bytes_spilled=sum(one["diskBytesSpilled"] for one in begun),
        failed_executors=sum(_failed(one) for one in executors),
        running=tuple(
            Stage(id=one["stageId"], name=one["name"][:200], tasks=one["numTasks"], tasks_done=one["numCompleteTasks"])
            for one in sorted(active, key=lambda one: one["stageId"])[:NAMED]
        ),
        **about,
    )


def _failed(executor: Mapping[str, Any]) -> bool:
    """Whether an executor was lost, not given back."""
    reason = executor.get("removeReason") or ""
    return executor["id"] != "driver" and not executor["isActive"] and bool(reason) and "killed by driver" not in reason
