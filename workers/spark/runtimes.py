"""The runtimes on Spark. A worker imports them with its first task on Spark, so that one for plain tasks never loads them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.authoring import execution
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.running import Context
from paceline.operators.spark import SUBMITTER
from scheduler.process import extras
from scheduler.serialized.tasks import traits
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.external_jobs import Ask
from workers.spark import connect_session, frames
from workers.spark.applications.jobs import Jobs, NoJobs, StoredJobs
from workers.spark.applications.submitter import Submitter
from workers.spark.sessions import session_pool, task
from workers.tables import access

if TYPE_CHECKING:
    from scheduler.catalog.access import Access


class PySpark:
    """A Spark session of the task's own, usually in a warm JVM, or on the Connect server of its connection."""

    traits = traits("pyspark")

    def __init__(self) -> None:
        #: Of the last task.
        self._cause: Callable[[BaseException], str | None] = task.cause

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, claim: Claim, ask: Ask | None) -> object:
        catalog, jobs = _catalog(settings, claim, ask), _jobs(values, settings, claim, ask)
        where = connect_session.target_of(operator, values)
        if where is not None and where.kind == "connect":
            self._cause = connect_session.cause
            return connect_session.run(operator, values, settings, where=where, jobs=jobs, catalog=catalog)
        self._cause = task.cause
        if where is not None:
            given = getattr(operator, "spark_conf", None) or {}
            operator.spark_conf = {"spark.master": where.master, **where.conf, **given}  # type: ignore[attr-defined]
        return task.run(operator, values, settings, jobs.reported, catalog.give if catalog else None)

    def explain(self, error: BaseException) -> str | None:
        if isinstance(error, ModuleNotFoundError):
            missing = extras.as_paceline_error(error, "A Spark task")
            return None if missing is None else f"{missing} Or send the task to a queue whose workers have it."
        return self._cause(error)

    def discard(self, claim: Claim, settings: Settings) -> None:
        frames.discard(claim, settings)

    def close(self) -> None:
        session_pool.shutdown()


class SparkSubmit:
    """An application with a driver of its own; the task follows it."""

    traits = traits("spark_submit")

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, claim: Claim, ask: Ask | None) -> object:
        submitter = Submitter(values, settings, _jobs(values, settings, claim, ask), catalog=_catalog(settings, claim, ask))
        return execution.run(operator, {**values, SUBMITTER: submitter})

    def explain(self, error: BaseException) -> str | None:
        return None

    def discard(self, claim: Claim, settings: Settings) -> None:
        """The task wrote no DataFrames."""

    def close(self) -> None:
        """It keeps nothing."""


#: By `Operator.worker_runtime`. See workers/task/execute.Runtime.
ON_SPARK: dict[str, PySpark | SparkSubmit] = {"pyspark": PySpark(), "spark_submit": SparkSubmit()}


@dataclass(frozen=True, slots=True)
class Catalog:
    """The catalog of tables for one try."""

    settings: Settings
    claim: Claim
    ask: Ask

    def give(self, *, elsewhere: bool = False) -> "Access | None":
        """What a session on this machine needs; with `elsewhere`, one that reaches only tables.url, if that is set."""
        if not elsewhere:
            return access.of(self.settings, self.claim, self.ask)
        url = self.settings.tables.url
        return replace(access.of(self.settings, self.claim, self.ask), uri=url) if url else None

    def take_over(self) -> None:
        """Let the application of an earlier try, which this one resumes, write as this try."""
        access.take_over(self.claim, self.ask)


def _catalog(settings: Settings, claim: Claim, ask: Ask | None) -> Catalog | None:
    """None without tables, and for a task that runs without a worker."""
    return None if ask is None or not settings.tables.warehouse else Catalog(settings, claim, ask)


def _jobs(values: Context, settings: Settings, claim: Claim, ask: Ask | None) -> Jobs:
    """The stored Spark applications and the progress of the try."""
    return NoJobs(values["ti"].now()) if ask is None else StoredJobs(settings, claim, ask)
