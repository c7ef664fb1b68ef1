"""Runs PySpark tasks: each has a new session, in a warm JVM of the pool process or in a new one."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.authoring import context, execution
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.exceptions import FailTask, PacelineError
from scheduler.dagfiles import load
from scheduler.settings import Settings
from workers.process import progress, trace_properties
from workers.process.logs import LoggerStates, stamp, worker_log
from workers.process.progress import Look, Progress
from workers.spark import causes, conf, frames, iceberg, java
from workers.spark.iceberg import JarsMissingError
from workers.spark.sessions import jvm_state, session, session_pool, shared_state
from workers.spark.sessions.jvm import JvmError
from workers.spark.sessions.session_pool import WarmJvm

if TYPE_CHECKING:
    from scheduler.catalog.access import Access

#: Reports the progress of the task inside the `with` block.
Watched = Callable[[Look], AbstractContextManager[None]]

#: Gives the try what it needs to use tables.
Give = Callable[[], "Access | None"]
#: The output of the JVM during the last task.
_output: list[str] = [""]
#: Why the last task had no catalog of tables, if tables are on; else empty.
_no_tables: list[str] = [""]


def run(
    operator: AbstractOperator, values: context.Context, settings: Settings, watched: Watched, give: Give | None = None
) -> object:
    """Run a PySpark task; its context has a new `spark` (SparkSession) and `sc` (SparkContext).

    With `give`, the session uses the catalog of tables.
    FailTask if there is no Java that Spark can use, or if its conf is not valid.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _output[:] = [""]
    own = conf.checked(getattr(operator, "spark_conf", None) or {})
    conf.check(own)
    for_jvm, for_session = conf.split(own)
    jvm_conf = conf.merged(settings, for_jvm)
    catalog = {} if give is None else _catalog(settings, jvm_conf, own, give)
    keep = settings.spark.warm and getattr(operator, "warm", True)
    options = java.archive_options(settings)

    def take() -> WarmJvm:
        return (session_pool.take if keep else session_pool.start)(jvm_conf, for_jvm, settings.spark, options)

    def release(warm: WarmJvm) -> None:
        _output[:] = [warm.jvm.recent_output()]
        session_pool.release(warm, settings.spark) if keep else session_pool.end(warm)

    warm, begun = _begun(take, release, for_session, catalog, name=_name(values["ti"]))
    # Including the loggers of PySpark and py4j, which exist only after the first task that imports them.
    loggers = LoggerStates()
    loggers.note_new()
    try:
        with session.until_end(warm, begun) as spark:
            pickle_by_value(settings)
            for key, value in trace_properties.for_spark(settings, values["ti"]).items():
                spark.conf.set(key, value)
            with watched(look(warm, jobs=bool(settings.tracing.otlp_endpoint))):
                result = execution.run(operator, {**values, "spark": spark, "sc": spark.sparkContext})
                shared_state.restore_modules()
                result = frames.stored(result, operator, values["ti"], settings)
        if warm.unfit == jvm_state.CATALOG_CHANGED:
            _warn_about_tables()
        return result
    except BaseException as error:
        _keep_text(warm, error)
        raise
    finally:
        loggers.restore()
        release(warm)


def _catalog(settings: Settings, jvm_conf: dict[str, str], own: Mapping[str, str], give: Give) -> dict[str, str]:
    """The keys of a session with the catalog of the try. Adds those of its JVM to `jvm_conf`; without jars, there is no catalog."""
    _no_tables[:] = [""]
    try:
        jvm_conf |= iceberg.jvm_conf(settings, jvm_conf)
    except JarsMissingError as missing:
        _no_tables[:] = [str(missing)]
        if settings.tables.spark_packages != iceberg.NONE:
            print(f"{stamp()} WARNING spark: this session has no catalog {settings.tables.catalog!r} of tables. {missing}")  # noqa: T201
        return {}
    access = give()
    return {} if access is None else iceberg.session_conf(access, own)


def _begun(
    take: Callable[[], WarmJvm],
    release: Callable[[WarmJvm], None],
    own: Mapping[str, str],
    catalog: Mapping[str, str],
    *,
    name: str,
) -> tuple[WarmJvm, session.Begun]:
    """A session with a task's own keys and those of its catalog: in a used JVM, or in a new one if that cannot create it."""
    while True:
        warm = take()
        try:
            with warm.jvm.must_answer(session_pool.ANSWER_S) if warm.tasks else contextlib.nullcontext():
                warm.check(own)
                return warm, session.begin(warm, {**catalog, **own}, name=name)
        except FailTask:  # a value that is not valid for its key
            release(warm)
            raise
        except BaseException as error:
            _keep_text(warm, error)
            _output[:] = [warm.jvm.recent_output()]
            session_pool.drop(warm, f"it created no session ({type(error).__name__})")
            if warm.tasks == 0 or not isinstance(error, Exception) or shared_state.is_interruption(error):
                raise
            worker_log.warning("a used JVM created no session (%s): starting a new JVM", causes.first_line(error))


def _warn_about_tables() -> None:
    """Log a warning that names in a catalog in memory do not last."""
    with contextlib.suppress(Exception):  # the task may have closed its output
        print(  # noqa: T201
            f"{stamp()} WARNING spark: only the JVM of this task knows the names of the tables, databases and functions that it "
            "created, and it ends now. Return the DataFrame, write it to a path, or use a persistent catalog."
        )


def _keep_text(warm: WarmJvm, error: BaseException) -> None:
    with contextlib.suppress(JvmError), warm.jvm.must_answer(session_pool.ANSWER_S):
        shared_state.keep_texts(error)


def cause(error: BaseException) -> str | None:
    """The cause for `error` of the last task of this process; None if the error is clear by itself."""
    if isinstance(error, PacelineError) or not isinstance(error, Exception):
        return None
    if _no_tables[0] and iceberg.NO_TABLE.search(str(error)):
        return _no_tables[0]
    return causes.of_error(error, *_output)


def _name(ti: Any) -> str:
    """The name of its jobs in the Spark UI and logs: DAG, task and run."""
    return f"{ti.dag_id}.{ti.task_id}{f'[{ti.map_index}]' if ti.map_index >= 0 else ''} {ti.run_id}"


class _ByValue(set[str]):
    """The names of the modules whose functions are pickled as code: those that tasks register, and all files of authors.

    Spark's Python workers cannot import DAG files and their modules. Of bundles, this process has only the modules of the version
    of its task, also those that a task imports while it runs.
    """

    _folders: tuple[Path, ...] = ()  # of a copy

    def __init__(self, registered: set[str], settings: Settings) -> None:
        super().__init__(registered)
        self._folders = settings.dags_folder, settings.bundles_folder

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or any(load.are_below(folder, [str(name)]) for folder in self._folders)


def pickle_by_value(settings: Settings) -> None:
    """Let PySpark pickle the functions of DAG files, and of their modules, as code."""
    from pyspark.cloudpickle import cloudpickle

    registered = cloudpickle._PICKLE_BY_VALUE_MODULES
    if not isinstance(registered, _ByValue):
        cloudpickle._PICKLE_BY_VALUE_MODULES = _ByValue(registered, settings)


#: Milliseconds to wait for the events of the previous task, which the store counts a moment later.
EVENTS_MS = 1000
#: The states of a stage that does not change any more.
ENDED = ("COMPLETE", "FAILED")


def look(warm: WarmJvm, *, jobs: bool = False) -> Look:
    """The progress of all work that starts from now on, since a JVM runs one task at a time; with `jobs`, each job too.

    The store keeps only the newest stages (spark.ui.retainedStages), so those that it drops are added up here. It also drops some
    between two readings, of which only the number is known.
    """
    from py4j.protocol import Py4JJavaError

    since_ms = int(time.time() * 1000)
    mapper: list[Any] = []
    with contextlib.suppress(Py4JJavaError):  # a timeout: then a stage of the previous task may count
        warm.bus.waitUntilEmpty(EVENTS_MS)
    completed_before = _completed(warm)
    ended: dict[tuple[int, int], dict[str, Any]] = {}
    dropped = Progress()

    def current() -> Progress | None:
        nonlocal dropped
        if not mapper:
            mapper.append(_mapper(warm))
        # Before the stages: one that completes between the two readings would count twice.
        completed = _completed(warm) - completed_before
        store = warm.status
        none = warm.jvm.gateway.new_array(warm.classes.double, 0)
        stages = json.loads(mapper[0].writeValueAsString(store.stageList(None, False, False, none, None)))
        stages = [stage for stage in stages if (stage["submissionTime"] or 0) >= since_ms]
        by_key = {(stage["stageId"], stage["attemptId"]): stage for stage in stages}
        dropped += progress.of_stages([ended.pop(key) for key in ended.keys() - by_key.keys()], [])
        ended.update((key, stage) for key, stage in by_key.items() if stage["status"] in ENDED)
        if not stages:
            return None
        executors = json.loads(mapper[0].writeValueAsString(store.executorList(False)))
        executors = [each for each in executors if each["isActive"] or (each.get("removeTime") or 0) >= since_ms]
        about: dict[str, Any] = {"application_id": warm.context.applicationId(), "ui_url": _ui_url(warm)}
        if jobs:
            ran = json.loads(mapper[0].writeValueAsString(store.jobsList(None)))
            about["jobs"] = progress.of_jobs([job for job in ran if (job["submissionTime"] or 0) >= since_ms])
        now = progress.of_stages(stages, executors, **about) + dropped
        unseen = max(completed - now.stages_done, 0)
        return now + Progress(stages=unseen, stages_done=unseen)

    return current


def _completed(warm: WarmJvm) -> int:
    """How many stages the application has completed."""
    return int(warm.status.appSummary().numCompletedStages())


def _ui_url(warm: WarmJvm) -> str | None:
    url = warm.context.uiWebUrl()
    return str(url.get()) if url.isDefined() else None


def _mapper(warm: WarmJvm) -> Any:
    """A mapper of Scala objects to JSON, in the form of Spark's REST API."""
    jackson = warm.classes.com.fasterxml.jackson
    mapper = jackson.databind.ObjectMapper()
    mapper.registerModule(getattr(getattr(jackson.module.scala, "DefaultScalaModule$"), "MODULE$"))
    return mapper
