"""An application in a cluster, followed to its end or ended: nothing here takes an unknown status for an end."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from scheduler.setting_sections import Spark
from scheduler.store.external_jobs import ExternalJob
from workers.logs import stamp
from workers.spark import causes
from workers.spark.masters import Cluster
from workers.spark.submit import limits, lines
from workers.spark.submit.jobs import Jobs, ids_of
from workers.spark.submit.status import ApplicationLivesError, Ids, Phase, Status, StatusUnknownError, UnreachableError

R = TypeVar("R")

#: Seconds between two looks whether an application is gone, and between two times it is told to be.
LOOK_S, ASK_AGAIN_S = 0.2, 2.0
KEPT_LINES = 2000


def say(text: str, *, level: str = "INFO") -> None:
    """A line of ours in the task's log."""
    print(f"{stamp()} {level} spark: {text}", flush=True)  # noqa: T201


@dataclass(slots=True)
class Followed:
    """One application; `say` writes a line into the log of whoever follows it."""

    cluster: Cluster
    job: ExternalJob
    jobs: Jobs
    settings: Spark
    say: Callable[[str], None] = say
    ids: Ids = field(init=False)
    #: The last lines of its driver, to find the cause of a failure in.
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    _seen: dict[str, int] = field(default_factory=dict)
    _noted: tuple[Phase, Ids] | None = None

    def __post_init__(self) -> None:
        self.ids = ids_of(self.job)

    def note(self, status: Status) -> None:
        """Store and tell what is new."""
        self.ids = self.ids.known(status.ids)
        news = (status.phase, self.ids)
        if news != self._noted:
            before, self._noted = self._noted, news
            self.jobs.note(self.job, Status(status.phase, status.detail, self.ids))
            if before is None or before[0] != status.phase:
                self.say(f"{self.ids}: {status.phase} ({status.detail})" if status.detail else f"{self.ids}: {status.phase}")
            if self.ids.ui_url and (before is None or before[1].ui_url is None):
                self.say(f"its own UI: {self.ids.ui_url}")

    def to_the_end(self) -> Status:
        """Follow it, its output in the log; how it ended. StatusUnknownError."""
        while True:
            status = self.patiently(self._status)
            # Before the end is noted: what is printed last belongs to the log too, and the ids in it to the row.
            self._pass_output()
            self.note(status)
            if status.phase.is_end:
                return status
            time.sleep(self.settings.status_interval)

    def look_up(self) -> bool:
        """Find by its tag what died before its id was stored; whether there is such an application. StatusUnknownError."""
        if not self.ids.is_named:
            found = self.patiently(lambda: self.cluster.find(self.job.tag, self.job.submitted_at))
            self.ids = self.ids.known(found or Ids())
        return self.ids.is_named

    def patiently(self, ask: Callable[[], R]) -> R:
        """`ask()` until it is answered, and not with an unknown status; StatusUnknownError after spark.status_patience."""
        since: float | None = None
        while True:
            try:
                answer = ask()
            except UnreachableError as error:
                why = str(error)
            else:
                if not (isinstance(answer, Status) and answer.phase is Phase.UNKNOWN):
                    if since is not None:
                        self.say(f"the cluster answers again after {time.monotonic() - since:.0f} s")
                    return answer
                why = answer.detail
            patience_s = self.settings.status_patience
            if since is None:
                since = time.monotonic()
                self.say(f"no status of {self.ids}: {why}; asking again for up to {patience_s:g} s (spark.status_patience)")
            if time.monotonic() - since > patience_s:
                raise StatusUnknownError(
                    f"The cluster gave no status of {self.ids} for {patience_s:g} s ({why}); it may still run: "
                    "the next try asks again before it submits anything."
                )
            time.sleep(self.settings.status_interval)

    def end(self, within_s: float | None = None) -> None:
        """Have it killed and see that it is gone; ApplicationLivesError, with the last that was heard, if it is not in time."""
        if not self.jobs.holds(self.job):
            # A worker that was cut off must not end what a later try has taken over.
            return self.say(f"{self.ids} has ended, or is followed by another try: left alone")
        timeout_s = self.settings.kill_timeout if within_s is None else within_s
        deadline = time.monotonic() + timeout_s
        ask_at, last = 0.0, "it was not asked"
        with limits.until(deadline):
            while time.monotonic() < deadline:
                try:
                    if self._is_gone():
                        return None
                    last = "the cluster still lists it"
                    if time.monotonic() >= ask_at:
                        self.cluster.kill(self.ids)
                        ask_at = time.monotonic() + ASK_AGAIN_S
                except UnreachableError as error:
                    last = str(error)
                time.sleep(LOOK_S)
        raise ApplicationLivesError(
            f"{self.ids} at {self.job.master} was told to end and is not gone after {timeout_s:g} s ({last}): "
            "a worker of its queue goes on trying; look at the cluster."
        )

    def _is_gone(self) -> bool:
        """Whether nothing of it is left; if so the row is closed."""
        if not self.ids.is_named:
            self.ids = self.ids.known(self.cluster.find(self.job.tag, self.job.submitted_at) or Ids())
        if not self.ids.is_named:
            self._ended("the cluster has nothing of it")
            return True
        if self.cluster.gone(self.ids, self.job.tag):
            self._ended("ended as asked")
            return True
        return False

    def _ended(self, detail: str) -> None:
        self.jobs.note(self.job, Status(Phase.KILLED, detail, self.ids))
        self.say(f"{self.ids}: {detail}")

    def _status(self) -> Status:
        return self.cluster.status(self.ids, self.job.tag)

    def hear(self, text: str, host: str | None) -> None:
        """Take in what its driver, on `host`, prints: ids that only it tells, and the last lines."""
        self.tail.extend(text.splitlines(keepends=True))
        found = lines.heard(text, host)
        if self.ids.known(found) != self.ids:
            self.note(Status(Phase.RUNNING, "", found))

    @property
    def cause(self) -> str:
        """Why it failed, in a sentence or two."""
        text = "".join(self.tail)
        alone = lines.error(text)
        return causes.of_text(text) or (causes.sentence(alone) if alone else "its output is above.")

    def _pass_output(self) -> None:
        try:
            text = self.cluster.output(self.ids, self._seen)
        except UnreachableError:
            return  # the next look asks for the same part again
        if text:
            self.hear(text, self.cluster.driver_host(self.ids))
            print(text, end="" if text.endswith("\n") else "\n", flush=True)  # noqa: T201


def end_for(interruption: BaseException, followed: Followed, within_s: float) -> None:
    """End an application because its task was interrupted; if it lives on, the reason of the task says so."""
    try:
        followed.end(within_s)
    except ApplicationLivesError as lives:
        say(str(lives), level="ERROR")
        interruption.args = (f"{interruption} {lives}",)
