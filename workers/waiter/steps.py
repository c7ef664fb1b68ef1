"""Runs each step of a coroutine with the modules of its version.

The steps of asyncio tasks alternate in one thread, and sys.modules belongs to all of them. A function that imports a module while
it runs must get that of its own version.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Protocol, TypeVar

R = TypeVar("R")

#: Seconds until a step that must not run yet is tried again.
SOON_S = 0.02


class Lock(Protocol):
    """Is held during a step."""

    def release(self) -> None: ...


#: Begins a step. Returns the lock to release after it, or None if no step may run now.
Enter = Callable[[], Lock | None]

_enter: contextvars.ContextVar[Enter] = contextvars.ContextVar("_enter")


async def of_version(coroutine: Coroutine[Any, Any, R], enter: Enter) -> R:
    """Await a coroutine. Its steps, and those of the tasks that it creates, run after `enter`."""
    asyncio.get_running_loop().set_task_factory(_task)
    _enter.set(enter)
    result: R = await _Steps(coroutine, enter)
    return result


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    enter = _enter.get(None)
    return asyncio.Task(coroutine if enter is None else _awaited(_Steps(coroutine, enter)), loop=loop, **options)


async def _awaited(steps: "_Steps") -> Any:
    return await steps


class _Steps:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], enter: Enter) -> None:
        self._coroutine = coroutine
        self._enter = enter

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            lock = self._enter()
            if lock is None:
                step = (yield from self._next(asyncio.sleep(SOON_S).__await__())) or step
                continue
            try:
                awaited = step()
            except StopIteration as ended:
                return ended.value
            finally:
                lock.release()
            step = (yield from self._next(_one(awaited))) or partial(self._coroutine.send, None)

    def _next(self, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Callable[[], Any] | None]:
        """Wait. Returns the next step if it is an exception for the coroutine, such as the cancellation of its task."""
        try:
            yield from waiting
        except GeneratorExit:
            self._coroutine.close()
            raise
        except BaseException as error:
            return partial(self._coroutine.throw, error)
        return None


def _one(awaited: Any) -> Generator[Any, Any, Any]:
    return (yield awaited)
