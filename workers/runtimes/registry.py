"""The runtimes: how the user code of each kind of task runs, and what its failures mean.

Those on Spark import its code when they run first, so that a worker for plain tasks never loads it.
"""

from collections.abc import Callable
from typing import Any

from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.running import Context
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim
from workers.runtimes import python

#: Gives the `workers.spark.applications.jobs.Jobs` of a try, a type that only tasks on Spark load.
Jobs = Callable[[], Any]


class Runtime:
    """The runtime of an operator, chosen by `Operator.runtime`: by default, plain Python code that runs in this process."""

    #: Whether processes that the task started stay after it, such as a warm JVM.
    keeps_processes = False

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, jobs: Jobs) -> object:
        """Run the operator with its context; its return value. Raises what the user code raises.

        `jobs` gives the stored Spark applications and the progress of the try.
        """
        return python.run(operator, values)

    def explain(self, error: BaseException) -> str | None:
        """The cause of a failure in one sentence; None if the error itself is the best explanation."""
        return None

    def discard(self, claim: Claim, settings: Settings) -> None:
        """Delete the data that a try wrote, because its report names none of it. The next try deletes its XComs."""


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
