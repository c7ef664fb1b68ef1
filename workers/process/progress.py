"""The progress of a Spark task: it is read once a second while the task runs, and stored for the CLI and the web pages."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.dispatches import ProgressWriter
from workers.process.logs import worker_log

#: Seconds until the first reading. The progress of a shorter task is not read; it costs only a waiting thread.
FIRST_S = 1.5
EVERY_S = 1.0
#: Maximum seconds to wait for the last reading, because the JVM may hang.
LAST_S = 2.0
#: Maximum number of running stages and of jobs that are stored.
NAMED, MOST_JOBS = 8, 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A running stage."""

    id: int
    name: str
    tasks: int
    tasks_done: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A Spark job. Times are milliseconds since 1970; a running job has no end."""

    id: int
    name: str
    status: str
    submitted_ms: int
    ended_ms: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of one try of a task: all work of its application, or its share of the work of a warm one.

    `stages` counts stages that have begun or ended. The number of later stages is unknown until they are planned.
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
    #: Only for traces.
    jobs: tuple[Job, ...] = ()

    def __add__(self, other: "Progress") -> "Progress":
        """This, with the counts of `other` added."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return dataclasses.replace(self, **counts)

    def as_json(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        if not self.jobs:
            del fields["jobs"]
        return fields


COUNTS = tuple(field.name for field in dataclasses.fields(Progress) if field.type == "int" or field.type is int)
#: Returns the current progress, or None if it is unknown. Another thread than that of the task calls it. Errors are ignored.
Look = Callable[[], Progress | None]


@contextlib.contextmanager
def reported(settings: Settings, claim: Claim, look: Look) -> Iterator[None]:
    """Store the results of `look` during the block: first after FIRST_S, then every EVERY_S, and once more at the end."""
    reporter = Reporter(look, ProgressWriter(settings, claim), also_short=bool(settings.tracing.otlp_endpoint))
    reporter.start()
    try:
        yield
    finally:
        reporter.close()


class Reporter(threading.Thread):
    """Reads and writes progress until it is closed. A lost entry is harmless, so errors never reach the task.

    With `also_short`, it reads the progress of a task that ends before `first_s` once.
    """

    def __init__(
        self, look: Look, writer: ProgressWriter, *, first_s: float = FIRST_S, every_s: float = EVERY_S, also_short: bool = False
    ) -> None:
        super().__init__(name="progress", daemon=True)
        self._look = look
        self._writer = writer
        self._first_s, self._every_s = first_s, every_s
        self._also_short = also_short
        self._ended = threading.Event()
        self._stored: Progress | None = None
        self._complained = False

    def run(self) -> None:
        try:
            if self._ended.wait(self._first_s):
                if self._also_short:
                    self._step()
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
            progress = self._look()
            if progress is not None and progress != self._stored:
                self._writer.write(progress.as_json())
                self._stored = progress
        except Exception as error:
            if not self._complained:
                self._complained = True
                worker_log.info("the progress is not available now: %s", str(error).strip().partition("\n")[0])


def of_stages(stages: list[dict[str, Any]], executors: list[dict[str, Any]], **about: Any) -> Progress:
    """Sum up the data of Spark's REST API (/applications/<id>/stages and /allexecutors), or of its own store in the same form."""
    begun = [stage for stage in stages if stage["status"] in {"ACTIVE", "COMPLETE", "FAILED"}]
    active = [stage for stage in begun if stage["status"] == "ACTIVE"]
    return Progress(
        stages=len(begun),
        stages_done=sum(stage["status"] == "COMPLETE" for stage in begun),
        tasks=sum(stage["numTasks"] for stage in begun),
        tasks_done=sum(stage["numCompleteTasks"] for stage in begun),
        tasks_failed=sum(stage["numFailedTasks"] for stage in begun),
        rows_read=sum(stage["inputRecords"] for stage in begun),
        bytes_read=sum(stage["inputBytes"] for stage in begun),
        rows_written=sum(stage["outputRecords"] for stage in begun),
        bytes_written=sum(stage["outputBytes"] for stage in begun),
        bytes_spilled=sum(stage["diskBytesSpilled"] for stage in begun),
        failed_executors=sum(_failed(executor) for executor in executors),
        running=tuple(
            Stage(id=stage["stageId"], name=stage["name"][:200], tasks=stage["numTasks"], tasks_done=stage["numCompleteTasks"])
            for stage in sorted(active, key=lambda stage: stage["stageId"])[:NAMED]
        ),
        **about,
    )


def of_jobs(jobs: Iterable[Mapping[str, Any]]) -> tuple[Job, ...]:
    """The newest jobs of Spark's REST API, whose times are texts, or of its own store, which has numbers."""
    begun = sorted((job for job in jobs if job.get("submissionTime")), key=lambda job: int(job["jobId"]))
    return tuple(
        Job(
            id=job["jobId"], name=job["name"][:200], status=job["status"], submitted_ms=_ms(job["submissionTime"]),
            ended_ms=_ms(job["completionTime"]) if job.get("completionTime") else None,
        )
        for job in begun[-MOST_JOBS:]
    )  # fmt: skip


def _ms(time: int | str) -> int:
    if isinstance(time, int):
        return time
    return round(datetime.strptime(time.replace("GMT", "+0000"), "%Y-%m-%dT%H:%M:%S.%f%z").timestamp() * 1000)


def _failed(executor: Mapping[str, Any]) -> bool:
    """Whether an executor was lost and not released."""
    reason = executor.get("removeReason") or ""
    return executor["id"] != "driver" and not executor["isActive"] and bool(reason) and "killed by driver" not in reason
