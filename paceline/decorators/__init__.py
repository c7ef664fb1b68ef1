"""The decorators that make tasks of functions. DAG files import them from `paceline`."""

from paceline.decorators.setup_teardown import setup, teardown
from paceline.decorators.task_decorator import task

__all__ = ["setup", "task", "teardown"]
