"""Ends abandoned applications: their worker died, and no retry will resume them."""

import functools
import threading
import uuid
from collections.abc import Callable, Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from scheduler.process.vital_thread import VitalThread
from scheduler.settings import Settings
from scheduler.store.worker import external_jobs
from scheduler.store.worker.external_jobs import ExternalJob
from workers.process import secrets_backend
from workers.process.logs import worker_log
from workers.spark.applications.jobs import Jobs, write
from workers.spark.applications.tracking import Followed
from workers.spark.clusters import registry
from workers.spark.clusters.status import ApplicationLivesError, Status, UnknownClusterError


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
            cluster = registry.of(job.kind, job.master, job.reach, job.deploy_mode, self._password)
            followed = Followed(cluster, job, self._jobs, self._settings, say=worker_log.info)
            followed.end()
        except (ApplicationLivesError, UnknownClusterError) as error:
            worker_log.warning("%s", error)
            return False
        worker_log.info("ended the abandoned Spark application %s of task instance %d", followed.ids, job.ti_id)
        return True
