"""What the exceptions of PySpark say, kept with them: they ask the JVM for it each time, which may have ended by then."""

from collections.abc import Iterator

from scheduler.exceptions import TaskTimeout
from workers.outcome import TaskStopped
from workers.spark.sessions.python_side import PACKAGES


def keep(error: BaseException) -> None:
    """Have `error`, and those it was raised from, say what they say now for as long as they live."""
    for one in chain(error):
        if type(one).__module__.partition(".")[0] in PACKAGES:
            _keep(one)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and all it was raised from."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]


def is_interruption(error: BaseException) -> bool:
    """Whether a timeout or a stop is at its root: py4j wraps what interrupts its calls."""
    return any(isinstance(one, TaskTimeout | TaskStopped) for one in chain(error))


def _keep(error: BaseException) -> None:
    try:
        text = str(error)
    except Exception:
        text = str(getattr(error, "errmsg", None) or getattr(error, "_desc", None) or "the JVM that could tell more has ended")
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda _: text}
    error.__class__ = type(kind.__name__, (kind,), names)
