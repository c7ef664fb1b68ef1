"""The thread pools of Spark SQL: each idle thread keeps the session of the task that created it in memory."""

import contextlib
from typing import Any

#: Seconds after which an idle thread ends; Spark's default is 60.
KEPT_S = 1
#: The classes with pools, in org.apache.spark.sql.execution.
POOLS = (
    "SubqueryExec",
    "exchange.BroadcastExchangeExec",
    "exchange.ShuffleExchangeExec",
    "adaptive.AdaptiveSparkPlanExec",
    "adaptive.ResultQueryStageExec",
)


def end_idle_soon(classes: Any) -> None:
    """Make the idle threads of all pools end within a second.

    A new thread inherits the active session of its creator, and every query creates one in each pool, up to a thousand. So
    the sessions of all tasks of the last minute would stay in the heap, with hundreds of kB each.
    """
    from py4j.protocol import Py4JError

    seconds = classes.java.util.concurrent.TimeUnit.SECONDS
    for name in POOLS:
        # Another version of Spark may have other pools; then the limits on a warm JVM bound its memory.
        with contextlib.suppress(AttributeError, TypeError, Py4JError):
            _pool(classes.org.apache.spark.sql.execution, name).setKeepAliveTime(KEPT_S, seconds)


def _pool(package: Any, name: str) -> Any:
    *folders, last = name.split(".")
    for folder in folders:
        package = getattr(package, folder)
    return getattr(getattr(package, f"{last}$"), "MODULE$").executionContext().executor()
