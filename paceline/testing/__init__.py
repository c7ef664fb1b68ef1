"""The results of runs without servers, which the fixtures of the pytest plugin return, and the plugin of mypy for DAG files."""

from paceline.testing.results import RunResult, TaskResult, TriggeredRun

__all__ = ["RunResult", "TaskResult", "TriggeredRun"]
