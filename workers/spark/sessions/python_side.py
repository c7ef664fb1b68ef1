"""The Python side of PySpark before a task: its modules, classes and objects are shared by tasks, which may change them."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from paceline.exceptions import TaskStopped, TaskTimeout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PACKAGES = frozenset({"pyspark", "py4j"})

_modules: dict[str, ModuleType] = {}


def restore_modules() -> None:
    """Restore the modules that a task removed or replaced. Importing them again would create other classes and state."""
    for name, module in _modules.items():
        if sys.modules.get(name) is not module:
            sys.modules[name] = module
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    _modules.update({name: module for name, module in loaded.items() if name not in _modules})


class PythonSide:
    """The attributes of the Python objects of a SparkContext and of its first session."""

    def __init__(self, base: "SparkSession") -> None:
        restore_modules()
        context: Any = base.sparkContext
        self._states = [(target, dict(vars(target))) for target in (base, context)]
        self._environment = dict(context.environment)
        self.accumulators = context._accumulatorServer
        _ignore_end_of_jvm(self.accumulators)

    def restore(self) -> None:
        """Restore the attributes."""
        for target, state in self._states:
            vars(target).clear()
            vars(target).update(state)
            if "environment" in state:
                target.environment = dict(self._environment)

    @property
    def broken(self) -> str | None:
        """The state that cannot be restored; None if everything can."""
        return "a task shut down the server of accumulators" if self.accumulators.server_shutdown else None


def _ignore_end_of_jvm(server: Any) -> None:
    """Ignore the closed connection when the JVM ends, for which the server would print a stack trace."""
    handle_error = server.handle_error

    def handle(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            handle_error(request, address)

    server.handle_error = handle


def keep_texts(error: BaseException) -> None:
    """Store the current messages of `error` and its causes, so that they do not need the JVM any more."""
    for link in chain(error):
        if type(link).__module__.partition(".")[0] in PACKAGES:
            _keep_text(link)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and all of its causes."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        link = left.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            left += [link.__cause__, link.__context__, *(link.exceptions if isinstance(link, BaseExceptionGroup) else ())]


def is_interruption(error: BaseException) -> bool:
    """Whether a timeout or a stop is among its causes; py4j wraps an interruption of its calls."""
    return any(isinstance(link, TaskTimeout | TaskStopped) for link in chain(error))


def _keep_text(error: BaseException) -> None:
    try:
        text = str(error)
    except Exception:
        text = str(getattr(error, "errmsg", None) or getattr(error, "_desc", None) or "the message is lost, since the JVM ended")
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda _: text}
    error.__class__ = type(kind.__name__, (kind,), names)
