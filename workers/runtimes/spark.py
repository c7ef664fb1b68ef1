"""PySpark tasks: one warm SparkContext a pool child, a session of its own for each task."""

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.authoring import context
from scheduler.authoring.operator import Operator
from scheduler.exceptions import TaskTimeout
from scheduler.settings import Settings
from workers.outcome import TaskStopped
from workers.runtimes import java, python
from workers.spark import frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Warm:
    """The JVM of this child, the configuration it was started with, and the session all others are made from."""

    conf: Mapping[str, str]
    jvm: java.Jvm
    base: Any


_warm: Warm | None = None


def run(operator: Operator, values: context.Context, settings: Settings) -> object:
    """Run a PySpark task; its context has a new `spark` (SparkSession) and `sc` (SparkContext).

    FailTask if there is no Java that Spark can use.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warm = _warmed(configuration(settings, getattr(operator, "spark_conf", None) or {}))
    session = warm.base.newSession()
    _make_current(session)
    _pickle_by_value(settings.dags_folder)
    try:
        result = python.run(operator, {**values, "spark": session, "sc": session.sparkContext})
        result = frames.stored(result, operator, values["ti"], settings)
    except BaseException as error:
        if _interrupted(error):
            shutdown()  # a call to the JVM was cut in the middle; what comes back over that connection belongs to no one
        else:
            _clean(warm, failed=True)
        raise
    _clean(warm, failed=False)
    return result


def configuration(settings: Settings, own: Mapping[str, Any]) -> dict[str, str]:
    """Ours for a small local Spark, overridden by the task's own keys."""
    conf = {
        "spark.app.name": "paceline",
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(settings.home / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    } | {key: str(value) for key, value in own.items()}
    if conf["spark.master"].startswith("local"):
        # A host name that does not resolve, as in many containers, is no reason to fail.
        conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} | conf
    return conf


def shutdown() -> None:
    """End the JVM; the next task starts another."""
    global _warm
    warm, _warm = _warm, None
    if warm is None:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    warm.jvm.stop()
    with contextlib.suppress(Exception):
        warm.jvm.gateway.shutdown()
    SparkSession._instantiatedSession = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None


def _warmed(conf: dict[str, str]) -> Warm:
    global _warm  # noqa: PLW0603 - a process has one SparkContext
    if _warm is not None and (_warm.conf != conf or not _warm.jvm.alive):
        shutdown()
    if _warm is None:
        jvm = java.Jvm(conf)
        try:
            _warm = Warm(conf, jvm, _session(conf, jvm))
        except BaseException:
            jvm.stop()
            raise
    elif _stopped(_warm.base):
        _warm.base = _session(conf, _warm.jvm)
    return _warm


def _session(conf: Mapping[str, str], jvm: java.Jvm) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = None
    SparkContext._active_spark_context = None
    SparkContext._ensure_initialized(gateway=jvm.gateway)
    settings = SparkConf().setAll(list(conf.items()))
    return SparkSession(SparkContext(conf=settings))


def _stopped(session: "SparkSession") -> bool:
    inner: Any = session.sparkContext._jsc
    return inner is None or bool(inner.sc().isStopped())


def _make_current(session: "SparkSession") -> None:
    """`SparkSession.builder.getOrCreate()` inside the task gives its own session."""
    from pyspark.sql import SparkSession

    classes: Any = session.sparkContext._jvm
    classes.SparkSession.setDefaultSession(session._jsparkSession)
    classes.SparkSession.setActiveSession(session._jsparkSession)
    SparkSession._instantiatedSession = session


def _pickle_by_value(folder: Path) -> None:
    """Functions of DAG files travel to Spark's Python workers as code: those cannot import them."""
    from pyspark import cloudpickle

    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            cloudpickle.register_pickle_by_value(module)


def _clean(warm: Warm, *, failed: bool) -> None:
    """Nothing cached or running is left to the next task."""
    with contextlib.suppress(Exception):
        if not _stopped(warm.base):
            if failed:
                warm.base.sparkContext.cancelAllJobs()
            warm.base.catalog.clearCache()
            for persisted in warm.base.sparkContext._jsc.getPersistentRDDs().values():
                persisted.unpersist(False)
    warm.jvm.settle()


def _interrupted(error: BaseException | None) -> bool:
    """Whether a timeout or a stop is at the root of `error`, or the connection to the JVM is broken."""
    from py4j.protocol import Py4JNetworkError

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, TaskTimeout | TaskStopped | Py4JNetworkError):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
