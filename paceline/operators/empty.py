"""A task that does nothing, such as a join of other tasks."""

from collections.abc import Mapping
from typing import Any, ClassVar

from paceline.authoring.operator import Operator


class EmptyOperator(Operator):
    """Succeeds without doing anything. A worker does not need its DAG file."""

    worker_runtime: ClassVar[str] = "empty"

    def execute(self, context: Mapping[str, Any]) -> None:
        return None
