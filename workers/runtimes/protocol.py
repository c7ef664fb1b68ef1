"""What a runtime is: how the user code of one kind of task runs, and what its failures mean."""

from collections.abc import Callable
from typing import Any, Protocol

from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.running import Context
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim

#: Gives the `workers.spark.applications.jobs.Jobs` of a try, a type that only tasks on Spark load.
Jobs = Callable[[], Any]


class Runtime(Protocol):
    """The runtime of an operator, chosen by `Operator.runtime` in registry.py."""

    @property
    def keeps_processes(self) -> bool:
        """Whether processes that the task started stay after it, such as a warm JVM."""
        ...

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, jobs: Jobs) -> object:
        """Run the operator with its context; its return value. Raises what the user code raises.

        `jobs` gives the stored Spark applications and the progress of the try.
        """
        ...

    def explain(self, error: BaseException) -> str | None:
        """The cause of a failure in one sentence; None if the error itself is the best explanation."""
        ...

    def discard(self, claim: Claim, settings: Settings) -> None:
        """Delete the data that a try wrote, because its report names none of it."""
        ...
