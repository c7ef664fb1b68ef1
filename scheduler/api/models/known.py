"""States and types that a client filters by. An unknown one is rejected, because it would silently select nothing."""

from collections.abc import Callable, Collection

from pydantic import AfterValidator

from paceline.states import RunState, TaskState
from scheduler.store.read.listing import ANY

#: Ours, and those that only Airflow has: `restarting` is our shutdown, and nothing waits for input. `none` is undecided.
TASK_STATES = (*TaskState, "restarting", "awaiting_input", "no_status")
RUN_STATES = (*RunState, "none")
RUN_TYPES = ("scheduled", "manual", "backfill", "asset_triggered", "asset_materialization", "operator_triggered")


def _each(what: str, names: Collection[str]) -> Callable[[list[str] | None], list[str] | None]:
    allowed = {*names, ANY}

    def check(values: list[str] | None) -> list[str] | None:
        for value in values or ():
            if value not in allowed:
                raise ValueError(f"{value[:100]!r} is not a {what}: choose {', '.join(names)}")
        return values

    return check


def _is_run_state(value: str | None) -> str | None:
    _each("state of a run", RUN_STATES)(None if value is None else [value])
    return value


OneRunState = AfterValidator(_is_run_state)
#: For parameters and fields that are lists.
TaskStates = AfterValidator(_each("state of a task instance", TASK_STATES))
RunStates = AfterValidator(_each("state of a run", RUN_STATES))
RunTypes = AfterValidator(_each("type of a run", RUN_TYPES))
