"""PySpark tasks: a session of its own for each, in a warm JVM of the pool child or in a new one."""

import contextlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from scheduler.authoring import context
from scheduler.authoring.operator import Operator
from scheduler.exceptions import PacelineError
from scheduler.settings import Settings
from workers.progress import Look
from workers.runtimes import python
from workers.spark import archive, causes, conf, frames
from workers.spark.warm import configuration, kept, session, watch

#: Tells others how far a task is while the block runs.
Watched = Callable[[Look], AbstractContextManager[None]]

#: What the JVM of the last task printed while that ran.
_said: list[str] = [""]


def run(
    operator: Operator, values: context.Context, settings: Settings, watched: Watched = lambda _: contextlib.nullcontext()
) -> object:
    """Run a PySpark task; its context has a new `spark` (SparkSession) and `sc` (SparkContext).

    FailTask if there is no Java that Spark can use, or its conf cannot be.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _said[:] = [""]
    own = conf.checked(getattr(operator, "spark_conf", None) or {})
    for_jvm, for_session = configuration.split(own)
    jvm_conf = configuration.merged(settings, for_jvm)
    keep = settings.spark.warm and getattr(operator, "warm", True)
    options = archive.options(settings)
    one = kept.take(jvm_conf, for_jvm, settings.spark, options) if keep else kept.start(jvm_conf, for_jvm, options)
    try:
        one.check(for_session)
        with session.opened(one, for_session, name=_name(values["ti"])) as spark:
            _pickle_by_value(settings.dags_folder)
            with watched(watch.look(one)):
                result = python.run(operator, {**values, "spark": spark, "sc": spark.sparkContext})
                return frames.stored(result, operator, values["ti"], settings)
    finally:
        _said[:] = [one.jvm.said()]
        if keep:
            kept.release(one, settings.spark)
        else:
            kept.end(one)


def cause(error: BaseException) -> str | None:
    """Why the last task of this process failed, of which `error` is what left it; None if that says it best itself."""
    if isinstance(error, PacelineError) or not isinstance(error, Exception):
        return None
    return causes.of_error(error, *_said)


def _name(ti: Any) -> str:
    """dag.task run, as jobs are called on Spark's page and in its logs."""
    return f"{ti.dag_id}.{ti.task_id}{f'[{ti.map_index}]' if ti.map_index >= 0 else ''} {ti.run_id}"


def _pickle_by_value(folder: Path) -> None:
    """Functions of DAG files travel to Spark's Python workers as code: those cannot import them."""
    from pyspark import cloudpickle

    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            cloudpickle.register_pickle_by_value(module)
