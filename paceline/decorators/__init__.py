"""The decorators that make tasks of functions. DAG files import them from `paceline`."""

from paceline.decorators.task_decorator import setup, task, teardown

__all__ = ["setup", "task", "teardown"]
