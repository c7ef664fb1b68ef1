"""An application in a cluster, followed to its end or ended: nothing here takes an unknown status for an end."""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from scheduler.exceptions import StaleTryError
from scheduler.settings.sections import Spark
from scheduler.store.worker.external_jobs import ExternalJob
from workers.logs import stamp
from workers.spark import causes
from workers.spark.applications import lines
from workers.spark.applications.jobs import Jobs, ids_of
from workers.spark.clusters import limits
from workers.spark.clusters.protocol import Cluster
from workers.spark.clusters.status import ApplicationLivesError, Ids, Phase, Status, StatusUnknownError, UnreachableError

R = TypeVar("R")

#: Seconds between two looks whether an application is gone, and between two times it is told to be.
LOOK_S, ASK_AGAIN_S = 0.2, 2.0
KEPT_LINES = 2000
NOT_FOUND = "the cluster knows nothing of it, but it may still be on its way"


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
    #: Whether the last that was noted could be stored: another try may follow it by now, or have ruled it out.
    is_ours: bool = True
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
            self.is_ours = self.jobs.note(self.job, Status(status.phase, status.detail, self.ids))
            if before is None or before[0] != status.phase:
                self.say(f"{self.ids}: {status.phase} ({status.detail})" if status.detail else f"{self.ids}: {status.phase}")
            if self.ids.ui_url and (before is None or before[1].ui_url is None):
                self.say(f"its own UI: {self.ids.ui_url}")

    def check_current(self) -> None:
        """Right before it is submitted. StaleTryError if this try is no longer the current one: the next may have ruled it out."""
        if not self.jobs.follows(self.job):
            self.jobs.note(self.job, Status(Phase.KILLED, "it was never submitted"))
            raise StaleTryError(
                f"This try is no longer the current one of its task instance: nothing was submitted as {self.job.tag}."
            )

    def submitted(self) -> None:
        """It is there: note its ids. StaleTryError if its try is no longer the current one, and then nothing of it is left."""
        self.note(Status(Phase.SUBMITTED, "", self.ids))
        if not self.is_ours:
            self.end()
            raise StaleTryError(f"This try is no longer the current one of its task instance: {self.ids} came too late.")

    def to_the_end(self) -> Status:
        """Follow it, its output in the log; how it ended. StatusUnknownError."""
        while True:
            status = self.status()
            # Before the end is noted: what is printed last belongs to the log too, and the ids in it to the row.
            self._pass_output()
            self.note(status)
            if status.phase.is_end:
                return status
            time.sleep(self.settings.status_interval)

    def status(self) -> Status:
        """How it goes. One that the cluster has not known for spark.not_found_patience has failed. StatusUnknownError."""
        found = self._patiently(lambda: self.cluster.status(self.ids, self.job.tag))
        assert found is not None
        if found.phase is not Phase.NOT_FOUND:
            return found
        return Status(Phase.FAILED, f"{found.detail}, for {self._not_found_s:g} s", found.ids)

    def look_up(self) -> bool:
        """Find by its tag what died before its id was stored; whether there is such an application. StatusUnknownError.

        One look is not enough to say that there is none: what was sent may still be on its way.
        """
        if not self.ids.is_named:
            found = self._patiently(lambda: self.cluster.find(self.job.tag, self.job.submitted_at))
            self.ids = self.ids.known(found or Ids())
        return self.ids.is_named

    def look_once(self) -> bool:
        """The same, with one look, which tells nothing if it finds none."""
        with contextlib.suppress(UnreachableError):
            self.ids = self.ids.known(self.cluster.find(self.job.tag, self.job.submitted_at) or Ids())
        return self.ids.is_named

    def _patiently(self, ask: Callable[[], R | None]) -> R | None:
        """`ask()` until its answer can be relied on; StatusUnknownError if there is none for spark.status_patience.

        Not found counts only when that is what the cluster says for spark.not_found_patience.
        """
        patience_s = self.settings.status_patience
        since = not_found_since = None
        while True:
            now, is_found = time.monotonic(), True
            try:
                answer = ask()
            except UnreachableError as error:
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
                why = answer.detail if isinstance(answer, Status) else f"nothing is found under the tag {self.job.tag}"
            if since is None:
                since = now
                self.say(f"no status of {self.ids}: {why}; asking again for up to {patience_s:g} s (spark.status_patience)")
            if is_found and now - since > patience_s:
                raise StatusUnknownError(
                    f"The cluster gave no status of {self.ids} for {patience_s:g} s ({why}); it may still run: "
                    "the next try asks again before it submits anything."
                )
            time.sleep(self.settings.status_interval)

    @property
    def _not_found_s(self) -> float:
        """For how long a cluster has to say that it does not know it; a driver in client mode has died with its worker."""
        return self.settings.not_found_patience if self.job.deploy_mode == "cluster" else 0.0

    def end(self, within_s: float | None = None) -> None:
        """Have it killed and see that it is gone; ApplicationLivesError, with the last that was heard, if it is not in time.

        Without `within_s` it has spark.kill_timeout, and what the cluster does not know spark.not_found_patience more.
        """
        timeout_s = self.settings.kill_timeout if within_s is None else within_s
        started = time.monotonic()
        deadline, kill_at, last = started + timeout_s, started, "it was not asked"
        not_found_since: float | None = None
        while (now := time.monotonic()) < deadline:
            try:
                with limits.until(deadline):
                    gone = self._gone()
                    if gone is None:
                        not_found_since = not_found_since or now
                        gone = now - not_found_since >= self._not_found_s
                        last = NOT_FOUND
                    else:
                        last = "the cluster still lists it"
                    if gone:
                        return self._ended("ended as asked" if self.ids.is_named else "the cluster has nothing of it")
                    if self.ids.is_named and now >= kill_at:
                        if not self.jobs.may_end(self.job, self.ids):
                            # A worker that was cut off must not end what a later try has taken over.
                            return self.say(f"{self.ids} has ended, or is followed by another try: left alone")
                        kill_at = now + ASK_AGAIN_S
                        self.cluster.kill(self.ids)
            except UnreachableError as error:
                last = str(error)
            if not_found_since is not None and within_s is None:
                deadline = max(deadline, not_found_since + self._not_found_s + timeout_s)
            time.sleep(LOOK_S)
        raise ApplicationLivesError(
            f"{self.ids} at {self.job.master} was told to end and is not gone after {deadline - started:.3g} s ({last}): "
            "a worker of its queue goes on trying; look at the cluster."
        )

    def _gone(self) -> bool | None:
        """Whether nothing of it is left; None if the cluster does not know it."""
        if not self.ids.is_named:
            self.ids = self.ids.known(self.cluster.find(self.job.tag, self.job.submitted_at) or Ids())
        return self.cluster.gone(self.ids, self.job.tag) if self.ids.is_named else None

    def _ended(self, detail: str) -> None:
        self.jobs.note(self.job, Status(Phase.KILLED, detail, self.ids))
        self.say(f"{self.ids}: {detail}")

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
