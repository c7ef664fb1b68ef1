"""A task that does nothing: a joint between other tasks."""

from collections.abc import Mapping
from typing import Any, ClassVar

from scheduler.authoring.operator import Operator


class EmptyOperator(Operator):
    """Succeeds without doing anything; its DAG file is not needed to run it."""

    runtime: ClassVar[str] = "empty"

    def execute(self, context: Mapping[str, Any]) -> None:
        return None
