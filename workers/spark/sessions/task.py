"""PySpark tasks: a session of its own for each, in a warm JVM of the pool child or in a new one."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from scheduler.authoring import context
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.exceptions import FailTask, PacelineError
from scheduler.settings import Settings
from workers.guard import Logging
from workers.logs import stamp, worker_log
from workers.progress import Look
from workers.runtimes import python
from workers.spark import archive, causes, conf, frames
from workers.spark.sessions import configuration, python_side, session, session_pool, watch, words
from workers.spark.sessions.jvm import JvmError
from workers.spark.sessions.session_pool import Warm

#: Tells others how far a task is while the block runs.
Watched = Callable[[Look], AbstractContextManager[None]]

#: What the JVM of the last task printed while that ran.
_said: list[str] = [""]


def run(
    operator: AbstractOperator, values: context.Context, settings: Settings, watched: Watched = lambda _: contextlib.nullcontext()
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

    def take() -> Warm:
        if keep:
            return session_pool.take(jvm_conf, for_jvm, settings.spark, options)
        return session_pool.start(jvm_conf, for_jvm, options, settings.spark)

    def give_back(one: Warm) -> None:
        _said[:] = [one.jvm.said()]
        session_pool.release(one, settings.spark) if keep else session_pool.end(one)

    one, begun = _begun(take, give_back, for_session, name=_name(values["ti"]))
    # Those of PySpark and py4j among them, which the guard did not know before the first task that imported them.
    loggers, tables = Logging(), one.jvm.tables
    loggers.note_new()
    try:
        with session.until_end(one, begun) as spark:
            _pickle_by_value(settings.dags_folder)
            with watched(watch.look(one)):
                result = python.run(operator, {**values, "spark": spark, "sc": spark.sparkContext})
                python_side.restore_modules()
                result = frames.stored(result, operator, values["ti"], settings)
        _tell_of_tables(one.jvm.tables - tables)
        return result
    except BaseException as error:
        _keep_words(one, error)
        raise
    finally:
        loggers.restore()
        give_back(one)


def _begun(
    take: Callable[[], Warm], give_back: Callable[[Warm], None], own: Mapping[str, str], *, name: str
) -> tuple[Warm, session.Begun]:
    """A session for the task, in a JVM that served others before or, if that one cannot give any, in a new one."""
    while True:
        one = take()
        try:
            with one.jvm.must_answer(session_pool.ANSWER_S) if one.tasks else contextlib.nullcontext():
                one.check(own)
                return one, session.begin(one, own, name=name)
        except FailTask:  # a value that its key does not take
            give_back(one)
            raise
        except BaseException as error:
            _keep_words(one, error)
            _said[:] = [one.jvm.said()]
            session_pool.drop(one, f"it gave no session ({type(error).__name__})")
            if one.tasks == 0 or not isinstance(error, Exception) or words.is_interruption(error):
                raise
            worker_log.warning("a JVM that other tasks had used gave no session (%s): starting another", causes.first_line(error))


def _tell_of_tables(names: set[str]) -> None:
    """Into the task's log: a table that is saved by name alone does not last."""
    if names:
        with contextlib.suppress(Exception):  # the task may have closed its output
            print(  # noqa: T201
                f"{stamp()} WARNING spark: {', '.join(sorted(names))} in the warehouse: known to this JVM alone, and removed with "
                "it. Return the DataFrame, write it to a path, or use a catalog that lasts."
            )


def _keep_words(one: Warm, error: BaseException) -> None:
    with contextlib.suppress(JvmError), one.jvm.must_answer(session_pool.ANSWER_S):
        words.keep(error)


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
