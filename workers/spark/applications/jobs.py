"""The stored applications of one task instance: from earlier tries, and the one that this try submits."""

import contextlib
import uuid
from datetime import datetime

from scheduler.settings import Settings
from scheduler.store.worker import external_jobs
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.external_jobs import ExternalJob
from workers.process import progress
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Ids, Status


class Jobs:
    """The storage of the applications of a try. By default it has none, and no earlier tries."""

    max_tries = 0

    def tag(self) -> str:
        """The tag of an application that this try submits."""
        raise NotImplementedError

    def open(self) -> list[ExternalJob]:
        """The applications of this task instance that may still run."""
        return []

    def add(self, submission: Submission) -> ExternalJob:
        """Store an application before it is submitted."""
        raise NotImplementedError

    def take_over(self, job: ExternalJob) -> ExternalJob | None:
        """Follow it from now on; None if another process follows it, or if it has ended."""
        return job

    def note(self, job: ExternalJob, status: Status) -> bool:
        """Store a status; False if the application no longer belongs to this try."""
        return True

    def follows(self, job: ExternalJob) -> bool:
        """Whether this try is the current one and still follows the application."""
        return True

    def may_end(self, job: ExternalJob, ids: Ids) -> bool:
        """Whether this try may end the application with these IDs: it follows it, or no other process does."""
        return self.follows(job)

    def reported(self, look: progress.Look) -> contextlib.AbstractContextManager[None]:
        """Store the results of `look` as the progress of the task, inside the `with` block."""
        return contextlib.nullcontext()


class StoredJobs(Jobs):
    """The storage in the database."""

    def __init__(self, settings: Settings, claim: Claim, ask: external_jobs.Ask) -> None:
        self.max_tries = claim.max_tries
        self._settings = settings
        self._claim = claim
        self._ask = ask

    def tag(self) -> str:
        return f"paceline-{self._claim.dispatch_id[:8]}-{self._claim.id}-{self._claim.try_number}"

    def open(self) -> list[ExternalJob]:
        return external_jobs.open_of(self._ask, self._claim.id)

    def add(self, submission: Submission) -> ExternalJob:
        claim, target = self._claim, submission.target
        return external_jobs.add(
            self._ask, claim.writer, max_tries=claim.max_tries, queue=claim.queue, tag=submission.tag, kind=target.kind,
            deploy_mode=target.deploy_mode, master=target.address, reach=dict(target.reach),
        )  # fmt: skip

    def take_over(self, job: ExternalJob) -> ExternalJob | None:
        return external_jobs.take_over(self._ask, self._claim.writer, job)

    def note(self, job: ExternalJob, status: Status) -> bool:
        return write(self._ask, job, status)

    def follows(self, job: ExternalJob) -> bool:
        return external_jobs.held_by(self._ask, self._claim.writer, job)

    def may_end(self, job: ExternalJob, ids: Ids) -> bool:
        # An application that appeared after its row was closed or taken over, and is not named there, has no other owner.
        return self.follows(job) or not external_jobs.names(
            self._ask, job, driver_id=ids.driver_id, application_id=ids.application_id
        )

    def reported(self, look: progress.Look) -> contextlib.AbstractContextManager[None]:
        return progress.reported(self._settings, self._claim, look)


class NoJobs(Jobs):
    """The storage for `paceline dags test`, without a database and without earlier tries."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._tag = f"paceline-{uuid.uuid4().hex[:8]}-0-1"

    def tag(self) -> str:
        return self._tag

    def add(self, submission: Submission) -> ExternalJob:
        target = submission.target
        return ExternalJob(
            id=0, ti_id=0, try_number=1, dispatch_id="", max_tries=0, tag=submission.tag, kind=target.kind,
            deploy_mode=target.deploy_mode, master=target.address, reach=dict(target.reach), driver_id=None, application_id=None,
            ui_url=None, submitted_at=self._now,
        )  # fmt: skip


def write(ask: external_jobs.Ask, job: ExternalJob, status: Status) -> bool:
    """Store a status; an end closes the row."""
    ids = status.ids
    return external_jobs.note(
        ask, job, state=status.phase.value, detail=status.detail, ended=status.phase.is_end,
        driver_id=ids.driver_id, application_id=ids.application_id, ui_url=ids.ui_url,
    )  # fmt: skip


def ids_of(job: ExternalJob) -> Ids:
    """The stored IDs of an application."""
    return Ids(job.driver_id, job.application_id, job.ui_url)
