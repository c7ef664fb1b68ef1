"""Following an application in a cluster to its end, or ending it. An unknown status is never treated as final."""

import contextlib
import functools
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from paceline.exceptions import StaleTryError
from scheduler.process.health import VitalThread
from scheduler.settings import Settings
from scheduler.settings.sections import Spark
from scheduler.store.worker import external_jobs
from scheduler.store.worker.external_jobs import ExternalJob
from workers.process import secrets_backend
from workers.process.logs import stamp, worker_log
from workers.spark import causes
from workers.spark.applications.jobs import Jobs, ids_of, write
from workers.spark.clusters import protocol, target
from workers.spark.clusters.protocol import (
    ApplicationLivesError,
    Cluster,
    ClusterUnreachableError,
    Ids,
    Phase,
    Status,
    StatusUnknownError,
    UnknownClusterError,
)

_APPLICATION = re.compile(
    r"\b[Aa]pp(?:lication)? I[Dd]:? (app-\d+-\d+|local-\d+|spark-\w+)\b|Submitted application (application_\d+_\d+)"
)
#: Spark 3 and spark-sql print the URL of the UI. Spark 4 prints only the port; the caller has the host.
_UI = re.compile(r"(?:SparkUI\b.{0,60}? started|Spark Web UI available) at (https?://[^\s,]+)")
_PORT = re.compile(r"Successfully started service 'SparkUI' on port (\d+)")
#: The output of spark-sql for a statement that failed: the error with its class, without a stack trace.
_ERROR = re.compile(r"^\[[A-Z0-9_.]+\] .+", re.MULTILINE)


def ids_in(text: str, host: str | None) -> Ids:
    """The IDs in the output of a driver that runs on `host`."""
    application, ui = _APPLICATION.search(text), _UI.search(text)
    url = ui[1] if ui else None
    if url is None and host is not None and (port := _PORT.search(text)):
        url = f"http://{host}:{port[1]}"
    return Ids(application_id=(application[1] or application[2]) if application else None, ui_url=url)


def error_in(text: str) -> str | None:
    """The last error on a line of its own, as spark-sql prints it."""
    errors = _ERROR.findall(text)
    return str(errors[-1]) if errors else None


R = TypeVar("R")

#: Seconds between two checks whether an application has ended, and between two requests to kill it.
LOOK_S, ASK_AGAIN_S = 0.2, 2.0
KEPT_LINES = 2000
#: Seconds for the rest of the output of a driver after its end, and requests without an answer before that is given up.
OUTPUT_S, OUTPUT_TRIES = 60.0, 3
NOT_FOUND = "the cluster does not know it, but the submission may still be on its way"


def say(text: str, *, level: str = "INFO") -> None:
    """Write a line to the log of the task."""
    print(f"{stamp()} {level} spark: {text}", flush=True)  # noqa: T201


@dataclass(slots=True)
class Followed:
    """One application that this process follows; `say` writes a line to the log of the process."""

    cluster: Cluster
    job: ExternalJob
    jobs: Jobs
    settings: Spark
    say: Callable[[str], None] = say
    ids: Ids = field(init=False)
    #: The last lines of output of its driver, in which the cause of a failure is searched.
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    #: Whether the last status could be stored. If not, another try follows the application or has declared it absent.
    is_ours: bool = True
    _seen: dict[str, int] = field(default_factory=dict)
    _noted: tuple[Phase, Ids] | None = None

    def __post_init__(self) -> None:
        self.ids = ids_of(self.job)

    def note(self, status: Status) -> None:
        """Store and log a status, if it is new."""
        self.ids = self.ids.known(status.ids)
        current = (status.phase, self.ids)
        if current != self._noted:
            before, self._noted = self._noted, current
            self.is_ours = self.jobs.note(self.job, Status(status.phase, status.detail, self.ids))
            if before is None or before[0] != status.phase:
                self.say(f"{self.ids}: {status.phase} ({status.detail})" if status.detail else f"{self.ids}: {status.phase}")
            if self.ids.ui_url and (before is None or before[1].ui_url is None):
                self.say(f"Spark UI: {self.ids.ui_url}")

    def check_current(self) -> None:
        """Check right before the submission. StaleTryError if this try is no longer the current one."""
        if not self.jobs.follows(self.job):
            self.jobs.note(self.job, Status(Phase.KILLED, "it was never submitted"))
            raise StaleTryError(
                f"This try is no longer the current one of its task instance: nothing was submitted as {self.job.tag}."
            )

    def submitted(self) -> None:
        """Store the IDs after the submission. StaleTryError if this try is no longer the current one; then it is ended."""
        self.note(Status(Phase.SUBMITTED, "", self.ids))
        if not self.is_ours:
            self.end()
            raise StaleTryError(f"This try is no longer the current one of its task instance: {self.ids} was submitted too late.")

    def to_the_end(self) -> Status:
        """Follow it to its end with its output in the log, and return the final status. StatusUnknownError."""
        while True:
            status = self.status()
            # Before the end is stored, so that the last output is in the log, and its IDs in the row.
            if status.phase.is_end:
                self._pass_rest()
            else:
                with contextlib.suppress(ClusterUnreachableError):  # the next request reads the same part
                    self._pass_output()
            self.note(status)
            if status.phase.is_end:
                return status
            time.sleep(self.settings.status_interval)

    def status(self) -> Status:
        """Its status. It has failed if the cluster has had no record of it for spark.not_found_patience. StatusUnknownError."""
        status = self._patiently(lambda: self.cluster.status(self.ids, self.job.tag))
        assert status is not None
        if status.phase is not Phase.NOT_FOUND:
            return status
        return Status(Phase.FAILED, f"{status.detail}, for {self._not_found_s:g} s", status.ids)

    def look_up(self) -> bool:
        """Find an application by its tag, if its ID was not stored. False if there is none. StatusUnknownError.

        A single request cannot prove that there is none, because the submission may still be on its way.
        """
        if not self.ids.is_named:
            self._patiently(self._find)
        return self.ids.is_named

    def look_once(self) -> bool:
        """The same with a single request, after which False proves nothing."""
        with contextlib.suppress(ClusterUnreachableError):
            self._find()
        return self.ids.is_named

    def _find(self) -> Ids | None:
        """Search it by its tag, and note its IDs."""
        ids = self.cluster.find(self.job.tag, self.job.submitted_at)
        self.ids = self.ids.known(ids or Ids())
        return ids

    def _patiently(self, ask: Callable[[], R | None]) -> R | None:
        """Repeat `ask()` until its answer is reliable; StatusUnknownError if there is none for spark.status_patience.

        "Not found" is reliable only if the cluster repeats it for spark.not_found_patience.
        """
        patience_s = self.settings.status_patience
        since = not_found_since = None
        while True:
            now, is_found = time.monotonic(), True
            try:
                answer = ask()
            except ClusterUnreachableError as error:
                why = str(error)
            else:
                phase = answer.phase if isinstance(answer, Status) else Phase.NOT_FOUND if answer is None else Phase.RUNNING
                if phase is Phase.NOT_FOUND:
                    is_found = False
                    not_found_since = not_found_since or now
                    if now - not_found_since >= self._not_found_s:
                        return answer
                elif phase is not Phase.UNKNOWN:
                    if since is not None:
                        self.say(f"the cluster answers again after {time.monotonic() - since:.0f} s")
                    return answer
                why = answer.detail if isinstance(answer, Status) else f"there is no application with the tag {self.job.tag}"
            if since is None:
                since = now
                self.say(f"no status of {self.ids}: {why}; asking again for up to {patience_s:g} s (spark.status_patience)")
            if is_found and now - since > patience_s:
                raise StatusUnknownError(
                    f"The cluster gave no status of {self.ids} for {patience_s:g} s ({why}). It may still run; "
                    "the next try asks again before it submits anything."
                )
            time.sleep(self.settings.status_interval)

    @property
    def _not_found_s(self) -> float:
        """Seconds for which a cluster must repeat "not found"; 0 in client mode, where the driver died with its worker."""
        return self.settings.not_found_patience if self.job.deploy_mode == "cluster" else 0.0

    def end(self, within_s: float | None = None) -> None:
        """Kill it and wait until it has ended; ApplicationLivesError, with the last answer, if that takes too long.

        The limit is `within_s`, by default spark.kill_timeout, plus spark.not_found_patience if the cluster has no record of it.
        """
        timeout_s = self.settings.kill_timeout if within_s is None else within_s
        started = time.monotonic()
        deadline, kill_at, last = started + timeout_s, started, "the cluster was not asked"
        not_found_since: float | None = None
        while (now := time.monotonic()) < deadline:
            try:
                with protocol.until(deadline):
                    gone = self._gone()
                    if gone is None:
                        not_found_since = not_found_since or now
                        gone = now - not_found_since >= self._not_found_s
                        last = NOT_FOUND
                    else:
                        last = "the cluster still lists it"
                    if gone:
                        return self._ended("ended as requested" if self.ids.is_named else "the cluster does not have it")
                    if self.ids.is_named and now >= kill_at:
                        if not self.jobs.may_end(self.job, self.ids):
                            # A worker that was cut off must not end an application that a later try has taken over.
                            return self.say(f"{self.ids} has ended or is followed by another try: not ended here")
                        kill_at = now + ASK_AGAIN_S
                        self.cluster.kill(self.ids)
            except ClusterUnreachableError as error:
                last = str(error)
            if not_found_since is not None and within_s is None:
                deadline = max(deadline, not_found_since + self._not_found_s + timeout_s)
            time.sleep(LOOK_S)
        raise ApplicationLivesError(
            f"{self.ids} at {self.job.master} has not ended {deadline - started:.3g} s after the request to end it ({last}): "
            "a worker of its queue keeps trying; check the cluster."
        )

    def _gone(self) -> bool | None:
        """Whether it has ended; None if the cluster has no record of it."""
        if not self.ids.is_named:
            self._find()
        return self.cluster.gone(self.ids, self.job.tag) if self.ids.is_named else None

    def _ended(self, detail: str) -> None:
        self.jobs.note(self.job, Status(Phase.KILLED, detail, self.ids))
        self.say(f"{self.ids}: {detail}")

    def read_output(self, text: str, host: str | None) -> None:
        """Read output of its driver on `host`: store new IDs, and remember the last lines."""
        self.tail.extend(text.splitlines(keepends=True))
        ids = ids_in(text, host)
        if self.ids.known(ids) != self.ids:
            self.note(Status(Phase.RUNNING, "", ids))

    @property
    def cause(self) -> str:
        """Why it failed, in a sentence or two."""
        text = "".join(self.tail)
        alone = error_in(text)
        return causes.of_text(text) or (causes.sentence(alone) if alone else "its output is above.")

    def _pass_output(self) -> bool:
        """Write the new output of its driver to the log. Returns whether there was any."""
        text = self.cluster.output(self.ids, self._seen)
        if text:
            self.read_output(text, self.cluster.driver_host(self.ids))
            print(text, end="" if text.endswith("\n") else "\n", flush=True)  # noqa: T201
        return bool(text)

    def _pass_rest(self) -> None:
        """Write all output that is left after its end, in which the cause of a failure is searched."""
        deadline, errors, why = time.monotonic() + OUTPUT_S, 0, f"it is longer than could be read in {OUTPUT_S:g} s"
        while time.monotonic() < deadline:
            try:
                if not self._pass_output():
                    return
                errors = 0
            except ClusterUnreachableError as error:
                errors, why = errors + 1, str(error)
                if errors == OUTPUT_TRIES:
                    break
                time.sleep(LOOK_S)
        say(f"the end of the output of {self.ids} is not in this log: {why}", level="WARNING")


def end_for(interruption: BaseException, followed: Followed, within_s: float) -> None:
    """End an application because its task was interrupted. If it does not end, the reason of the task states that."""
    try:
        followed.end(within_s)
    except ApplicationLivesError as lives:
        say(str(lives), level="ERROR")
        interruption.args = (f"{interruption} {lives}",)


class ReaperJobs(Jobs):
    """The storage of applications that a reaper has taken over. It cannot submit any."""

    def __init__(self, ask: external_jobs.Ask) -> None:
        self._ask = ask

    def take_over(self, job: ExternalJob) -> ExternalJob | None:
        return external_jobs.take_abandoned(self._ask, job, reaper=str(uuid.uuid4()))

    def note(self, job: ExternalJob, status: Status) -> bool:
        return write(self._ask, job, status)

    def follows(self, job: ExternalJob) -> bool:
        return external_jobs.held(self._ask, job)


class Reaper(VitalThread):
    """A thread of the worker process. It ends only applications of the worker's own queues, whose clusters it can reach."""

    def __init__(self, engine: Engine, queues: Sequence[str], settings: Settings, stopping: Callable[[], bool]) -> None:
        super().__init__(name="reaper", daemon=True)
        self._ask = external_jobs.by_engine(engine)
        self._queues = queues
        self._settings = settings.spark
        self._password = functools.partial(secrets_backend.password, settings, self._ask)
        self._jobs = ReaperJobs(self._ask)
        self._stopping = stopping
        self._done = threading.Event()

    def end(self) -> None:
        self._done.set()

    def work(self) -> None:
        while not self._done.wait(self._settings.abandoned_check_interval):
            if self._stopping():
                continue
            try:
                self.look()
            except DBAPIError:
                continue  # the heartbeat logs it; the next iteration tries again
            except Exception:
                worker_log.exception("the search for abandoned Spark applications failed; it will be repeated")

    def look(self) -> int:
        """End the applications that are abandoned now, and return their number."""
        jobs = (self._jobs.take_over(job) for job in external_jobs.abandoned(self._ask, self._queues))
        return sum(self._end(job) for job in jobs if job is not None)

    def _end(self, job: ExternalJob) -> bool:
        try:
            cluster = target.cluster_of(job.kind, job.master, job.reach, job.deploy_mode, self._password)
            cluster.forks = True
            followed = Followed(cluster, job, self._jobs, self._settings, say=worker_log.info)
            followed.end()
        except (ApplicationLivesError, UnknownClusterError) as error:
            worker_log.warning("%s", error)
            return False
        worker_log.info("ended the abandoned Spark application %s of task instance %d", followed.ids, job.ti_id)
        return True
