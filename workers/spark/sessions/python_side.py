"""Python's side of PySpark as it was before a task: tasks share its modules, classes and objects, and may change them."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = frozenset({"pyspark", "py4j"})

_modules: dict[str, ModuleType] = {}


def restore_modules() -> None:
    """Put back the modules that a task removed or replaced: imported again they would be other classes with another state."""
    for name, module in _modules.items():
        if sys.modules.get(name) is not module:
            sys.modules[name] = module
    _modules.update({name: one for name, one in sys.modules.items() if name.partition(".")[0] in PACKAGES and name not in _modules})


class PythonSide:
    """The attributes of the Python objects of a SparkContext and of its first session."""

    def __init__(self, base: "SparkSession") -> None:
        restore_modules()
        context: Any = base.sparkContext
        self._states = [(one, dict(vars(one))) for one in (base, context)]
        self._environment = dict(context.environment)
        self.accumulators = context._accumulatorServer
        _let_its_jvm_end(self.accumulators)

    def restore(self) -> None:
        """Put them back."""
        for one, state in self._states:
            vars(one).clear()
            vars(one).update(state)
            if "environment" in state:
                one.environment = dict(self._environment)

    @property
    def broken(self) -> str | None:
        """What cannot be put back; None if all could."""
        return "a task shut down the server of accumulators" if self.accumulators.server_shutdown else None


def _let_its_jvm_end(server: Any) -> None:
    """A JVM closes its connection only by ending, which this server takes for an error: it would print a stack trace."""
    handle_error = server.handle_error

    def handle(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            handle_error(request, address)

    server.handle_error = handle
