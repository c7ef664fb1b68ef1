"""`@task.run_if` and `@task.skip_if`: a condition that is evaluated before each try and can skip the task."""

from collections.abc import Callable, Mapping
from typing import Any

from paceline.authoring import source
from paceline.exceptions import SkipTask

#: Takes the context. Returns whether the condition is true, or a pair of this and a reason.
Condition = Callable[[Mapping[str, Any]], "bool | tuple[bool, str | None]"]


def hook(condition: Condition, *, wanted: bool, skip_message: str | None) -> Callable[[Mapping[str, Any]], None]:
    """A pre_execute hook that skips the task unless the condition is `wanted`."""
    if not callable(condition):
        raise source.fault(f"@task.run_if and @task.skip_if take a function of the context, not {condition!r}.")

    def skip_unless(context: Mapping[str, Any]) -> None:
        result = condition(context)
        is_true, why = result if isinstance(result, tuple) else (result, None)
        if bool(is_true) is not wanted:
            name = getattr(condition, "__name__", "the condition")
            raise SkipTask(why or skip_message or f"{name} is {'true' if is_true else 'false'}")

    return skip_unless
