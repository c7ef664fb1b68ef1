"""Waiting without a worker: the exceptions that release it, and the base class of the triggers that a waiter awaits."""

import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from paceline.authoring import xcom
from paceline.exceptions import PacelineError
from paceline.exceptions import TaskDeferred as TaskDeferred  # noqa: PLC0414 - DAG files import it together with the triggers


class TaskRescheduled(BaseException):
    """Raised by a sensor: poke again in `delay_s` seconds. Not an Exception, so that `except Exception` does not catch it."""

    def __init__(self, delay_s: float, resume: Mapping[str, Any]) -> None:
        super().__init__(f"next poke in {delay_s:g} s")
        self.delay_s = delay_s
        self.resume = dict(resume)


class TriggerEvent:
    """The result of a trigger. The payload is a value that an XCom can be."""

    def __init__(self, payload: Any = None) -> None:
        self.payload = payload

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TriggerEvent) and other.payload == self.payload

    def __hash__(self) -> int:
        return hash(repr(self.payload))

    def __repr__(self) -> str:
        return f"TriggerEvent<{self.payload!r}>"


class BaseTrigger:
    """An asynchronous condition of a deferred task. A waiter process awaits a thousand of them: never block in `run`.

    Subclasses take their arguments by name, return them from `serialize`, and yield TriggerEvents from `run`; the first
    event continues the task.
    """

    #: Set by the waiter: reads the states of other runs, see paceline/authoring/triggers, and the clock.
    other_runs: Any = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The import path of the class, and the arguments that create this trigger again."""
        raise NotImplementedError(f"{type(self).__name__} has no serialize().")

    def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield a TriggerEvent once the condition holds; an async generator."""
        raise NotImplementedError(f"{type(self).__name__} has no run().")

    async def cleanup(self) -> None:
        """Called when the trigger ends or another waiter takes it over."""

    async def on_kill(self) -> None:
        """Called before `cleanup` when a clear, a mark or the end of its run stops the task. End its jobs in other systems here.

        It has 30 s. It is not called after a timeout, or if the waiter ends.
        """


def serialized(trigger: Any) -> tuple[str, dict[str, Any]]:
    """The class path and the arguments, as JSON, of a trigger or of any object with an async `wait()`.

    PacelineError if a waiter could not create it from them.
    """
    kind = type(trigger)
    path = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(trigger, type):
        raise PacelineError(f"defer() takes a trigger, not the class {trigger.__name__}; write {trigger.__name__}(...).")
    if callable(getattr(trigger, "serialize", None)):
        path, arguments = trigger.serialize()
    elif callable(getattr(trigger, "wait", None)):
        is_dataclass = dataclasses.is_dataclass(trigger)
        names = [field.name for field in dataclasses.fields(trigger)] if is_dataclass else list(vars(trigger))
        arguments = {name: getattr(trigger, name) for name in names}
    else:
        raise PacelineError(f"defer() takes a BaseTrigger or an object with an async wait(), not {trigger!r}.")
    if "<locals>" in path:
        raise PacelineError(f"The trigger class {path} is defined inside a function; define it at the top level of a module.")
    return path, encode(arguments, f"arguments of {kind.__name__}")


async def first_event(trigger: Any) -> Any:
    """The payload of the first event of a trigger, or the result of an async `wait()`; PacelineError if there is no event."""
    if not isinstance(trigger, BaseTrigger) and callable(getattr(trigger, "wait", None)):
        return await trigger.wait()
    events = trigger.run()
    try:
        async for event in events:
            return event.payload if isinstance(event, TriggerEvent) else event
    finally:
        await events.aclose()
    raise PacelineError(f"The trigger {type(trigger).__name__} ended without an event.")


def encode(value: Any, name: str) -> Any:
    """`value` as JSON; PacelineError names a type that cannot be stored. `name` is the subject of the error."""
    return xcom.plain(value, name)


def decode(value: Any) -> Any:
    """The value that `encode` received, with tuples as lists."""
    return json.loads(json.dumps(value), object_hook=xcom.revived)
