"""The Python side of PySpark before a task: its modules, classes and objects are shared by tasks, which may change them."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
