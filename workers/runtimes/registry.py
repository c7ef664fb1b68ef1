"""The runtimes: how the user code of each kind of task runs, and what its failures mean.

Those on Spark import its code when they run first, so that a worker for plain tasks never loads it.
"""

from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.running import Context
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim
from workers.runtimes.python import Jobs, Runtime


class PySpark(Runtime):
    """A Spark session of the task's own, usually in a warm JVM."""

    # A warm JVM stays: it runs nothing of a task that has ended.
    keeps_processes = True

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, jobs: Jobs) -> object:
        from workers.spark.sessions import task

        return task.run(operator, values, settings, jobs().reported)

    def explain(self, error: BaseException) -> str | None:
        from workers.spark.sessions import task

        return task.cause(error)

    def discard(self, claim: Claim, settings: Settings) -> None:
        from workers.spark import frames

        frames.discard(claim, settings)


class SparkSubmit(Runtime):
    """An application with a driver of its own; the task follows it."""

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, jobs: Jobs) -> object:
        from workers.spark.applications import submitter

        return submitter.run(operator, values, settings, jobs())


#: By `Operator.runtime`.
RUNTIMES: dict[str, Runtime] = {
    **dict.fromkeys(("python", "bash", "empty"), Runtime()),
    "pyspark": PySpark(),
    "spark_submit": SparkSubmit(),
}
