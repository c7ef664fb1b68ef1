"""`@task.run_if` and `@task.skip_if`: a condition, asked before each try, that skips the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.authoring import source
from scheduler.exceptions import SkipTask

#: Takes the context and returns whether it holds, or a pair of that and the reason to show.
Condition = Callable[[Mapping[str, Any]], "bool | tuple[bool, str | None]"]


def hook(condition: Condition, *, wanted: bool, skip_message: str | None) -> Callable[[Mapping[str, Any]], None]:
    """A pre_execute that skips unless the condition is as `wanted`."""
    if not callable(condition):
        raise source.fault(f"@task.run_if and @task.skip_if take a function of the context, not {condition!r}.")

    def skip_unless(context: Mapping[str, Any]) -> None:
        found = condition(context)
        holds, why = found if isinstance(found, tuple) else (found, None)
        if bool(holds) is not wanted:
            name = getattr(condition, "__name__", "the condition")
            raise SkipTask(why or skip_message or f"{name} is {'true' if holds else 'false'}")

    return skip_unless
