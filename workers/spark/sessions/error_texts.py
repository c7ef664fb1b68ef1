"""The messages of PySpark's exceptions. They are stored with the exceptions, which otherwise read them from the JVM each time."""

from collections.abc import Iterator

from paceline.exceptions import TaskStopped, TaskTimeout
from workers.spark.sessions.python_side import PACKAGES


def keep(error: BaseException) -> None:
    """Store the current messages of `error` and its causes, so that they do not need the JVM any more."""
    for link in chain(error):
        if type(link).__module__.partition(".")[0] in PACKAGES:
            _keep(link)


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


def _keep(error: BaseException) -> None:
    try:
        text = str(error)
    except Exception:
        text = str(getattr(error, "errmsg", None) or getattr(error, "_desc", None) or "the message is lost, since the JVM ended")
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda _: text}
    error.__class__ = type(kind.__name__, (kind,), names)
