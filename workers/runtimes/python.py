"""The runtime of plain Python tasks, and the part that all runtimes share: render, then execute or resume."""

from collections.abc import Callable
from typing import Any

from scheduler.authoring import execution, running
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim

#: Gives the `workers.spark.applications.jobs.Jobs` of a try, a type that only tasks on Spark load.
Jobs = Callable[[], Any]


class Runtime:
    """The runtime of an operator, chosen by `Operator.runtime`: by default, plain Python code that runs in this process."""

    #: Whether processes that the task started stay after it, such as a warm JVM.
    keeps_processes = False

    def run(self, operator: AbstractOperator, values: running.Context, settings: Settings, jobs: Jobs) -> object:
        """Run the operator with its context; its return value. Raises what the user code raises.

        `jobs` gives the stored Spark applications and the progress of the try.
        """
        return execution.run(operator, values)

    def explain(self, error: BaseException) -> str | None:
        """The cause of a failure in one sentence; None if the error itself is the best explanation."""
        return None

    def discard(self, claim: Claim, settings: Settings) -> None:
        """Delete the data that a try wrote, because its report names none of it. The next try deletes its XComs."""
