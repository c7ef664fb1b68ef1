"""The threads that Spark SQL keeps for its stages: each holds on to the session of the task that it was made in."""

import contextlib
from typing import Any

#: Seconds that such a thread waits for more to do; Spark's own figure is 60.
KEPT_S = 1
#: Where Spark SQL keeps its pools, below org.apache.spark.sql.execution.
POOLS = (
    "SubqueryExec",
    "exchange.BroadcastExchangeExec",
    "exchange.ShuffleExchangeExec",
    "adaptive.AdaptiveSparkPlanExec",
    "adaptive.ResultQueryStageExec",
)


def let_go_soon(classes: Any) -> None:
    """Have the idle threads of all pools end within a second.

    A new thread inherits the active session of the one that made it, and every query makes one in each pool until there are a
    thousand. So the sessions of all tasks of the last minute would stay in the heap, hundreds of kB each.
    """
    from py4j.protocol import Py4JError

    seconds = classes.java.util.concurrent.TimeUnit.SECONDS
    for name in POOLS:
        # Another version of Spark has other pools; what is then kept is bounded by the settings for a JVM's end.
        with contextlib.suppress(AttributeError, TypeError, Py4JError):
            _pool(classes.org.apache.spark.sql.execution, name).setKeepAliveTime(KEPT_S, seconds)


def _pool(package: Any, name: str) -> Any:
    *folders, last = name.split(".")
    for folder in folders:
        package = getattr(package, folder)
    return getattr(getattr(package, f"{last}$"), "MODULE$").executionContext().executor()
