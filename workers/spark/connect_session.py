"""Runs PySpark tasks on a Spark Connect server: each has a session of its own there, which is closed after the task.

The ID of the session comes from the tag of the try, and its row is that of an application. So the next try after a lost worker, or
a worker of the queue if there is none, closes the session first: the server cancels what it still executes, and a worker that was
only frozen cannot use it any more.
"""

import contextlib
import dataclasses
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from paceline import secrets_masker
from paceline.authoring import context, execution
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.exceptions import FailTask, PacelineError, SkipTask
from scheduler.process import extras
from scheduler.settings import Settings
from workers.process.logs import LoggerStates
from workers.process.progress import NAMED, Progress, Stage
from workers.spark import causes, conf, frames, iceberg
from workers.spark.applications.jobs import Jobs
from workers.spark.applications.tracking import Followed, say
from workers.spark.clusters import connect, target
from workers.spark.clusters.command import Submission, Target
from workers.spark.clusters.protocol import ClusterUnreachableError, Ids, Phase, Status
from workers.spark.sessions import session_pool, shared_state
from workers.spark.sessions.task import pickle_by_value

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from scheduler.catalog.access import Access

#: Seconds for the server to cancel the work of an interrupted task. A pool process has ten seconds in total.
INTERRUPTED_S = 3.0
#: The gRPC status in the text of an error.
STATUS = re.compile(r"StatusCode\.([A-Z_]+)")
#: PySpark's functions are those of Connect while this variable is set; then its value does not matter.
MODE = "SPARK_CONNECT_MODE_ENABLED"
#: What the server answers to a client that it does not let in.
REFUSALS = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})


class ConnectServerError(PacelineError):
    """A Spark Connect server opened no session for a task."""


class TokenRefusedError(ConnectServerError):
    """The server does not let the client in, so it has no session of it."""


class TryCatalog(Protocol):
    """What a try may ask of the catalog of tables."""

    def give(self, *, elsewhere: bool) -> "Access | None":
        """What a session on another machine needs; None if it cannot reach the catalog."""


def run(
    operator: AbstractOperator,
    values: context.Context,
    settings: Settings,
    *,
    where: Target,
    jobs: Jobs,
    catalog: TryCatalog | None,
) -> object:
    """Run a PySpark task in a new session on the server `where`; its context has the session as `spark`, and None as `sc`.

    FailTask if the session cannot have its conf; ConnectServerError or MasterUnreachableError if there is no session.
    """
    own = _session_conf(operator, where)
    name = f"the connection {getattr(operator, 'conn_id', None)!r}"
    _close_earlier(jobs, settings, values)
    conf.check_master(where.address, timeout_s=settings.spark.submit_timeout, correct=name)
    job = jobs.add(Submission(target=where, tag=jobs.tag(), name=operator.task_id, application=""))
    followed = Followed(_cluster(where.kind, where.address, where.reach, values), job, jobs, settings.spark)
    ended, may_exist = Status(Phase.FINISHED), False
    # Including the loggers of the client, which exist only after the first task that imports it.
    loggers = LoggerStates()
    loggers.note_new()
    try:
        with _entered(where, job.tag) as spark:
            may_exist = True
            version = _open(spark, {**_catalog(settings, catalog), **own}, where, name, settings.spark.submit_timeout)
            ids = Ids(application_id=connect.session_of(job.tag))
            followed.note(Status(Phase.RUNNING, f"a session on {where.address}, Spark {version}", ids))
            pickle_by_value(settings)
            watched = Watched(spark)
            with jobs.reported(watched.look):
                result = execution.run(operator, {**values, "spark": spark, "sc": None})
                shared_state.restore_modules()
                return frames.stored(result, operator, values["ti"], settings)
    except BaseException as error:
        if shared_state.is_interruption(error):
            ended = Status(Phase.KILLED, type(error).__name__)
        elif isinstance(error, Exception) and not isinstance(error, SkipTask):
            ended = Status(Phase.FAILED, type(error).__name__)
        may_exist = may_exist and not isinstance(error, TokenRefusedError)
        raise
    finally:
        loggers.restore()
        if may_exist:
            _close(followed, connect.remote(where.master, job.tag), ended)
        else:
            followed.note(ended)


def target_of(operator: AbstractOperator, values: context.Context) -> Target | None:
    """The target of the connection of a PySpark task; None without one. FailTask if it is not for functions."""
    conn_id = getattr(operator, "conn_id", None)
    if conn_id is None:
        return None
    where = target.choose(None, None, None, values["conn"][conn_id])
    if where.is_cluster_mode:
        raise FailTask(
            f"The connection {conn_id!r} has the deploy mode cluster, but the driver of a function is here: use "
            "SparkSubmitOperator, or another connection."
        )
    return where


def cause(error: BaseException) -> str | None:
    """The cause for an error of a task; None if the error is clear by itself."""
    if isinstance(error, PacelineError) or not isinstance(error, Exception):
        return None
    return causes.of_error(error)


def _session_conf(operator: AbstractOperator, where: Target) -> dict[str, str]:
    """The conf of a session: that of the connection and that of the task, which takes precedence. FailTask."""
    own = conf.checked({**where.conf, **(getattr(operator, "spark_conf", None) or {})})
    for_server, for_session = conf.split(own)
    if for_server:
        raise FailTask(
            f"A session on a Connect server does not take the conf {next(iter(for_server))}: set it on the server, and remove it "
            "from the task and its connection."
        )
    return for_session


def _cluster(kind: str, address: str, reach: Mapping[str, str], values: context.Context) -> Any:
    def password(conn_id: str) -> str | None:
        text: str | None = values["conn"][conn_id].password
        return text

    return target.cluster_of(kind, address, reach, "client", password)


def _close_earlier(jobs: Jobs, settings: Settings, values: context.Context) -> None:
    """Close the sessions of earlier tries, which the server may still serve. ApplicationLivesError if it does not answer."""
    for job in jobs.open():
        taken = jobs.take_over(job)
        if taken is not None:
            say(f"ending the session of try {job.try_number}")
            Followed(_cluster(job.kind, job.master, job.reach, values), taken, jobs, settings.spark).end()


def _catalog(settings: Settings, catalog: TryCatalog | None) -> dict[str, str]:
    """The conf of a session that uses the catalog of the try."""
    access = None if catalog is None else catalog.give(elsewhere=True)
    if access is not None:
        secrets_masker.mask_secret(access.token)
        return iceberg.conf_on_server(access)
    if catalog is not None:
        say(
            f"this session has no catalog {settings.tables.catalog!r} of tables. A Connect server needs the address of a web "
            "process in tables.url.",
            level="WARNING",
        )
    return {}


@contextlib.contextmanager
def _entered(where: Target, tag: str) -> Iterator["SparkSession"]:
    """A session that PySpark takes as the current one of this process in the block. It sends no request."""
    try:
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        needs = extras.as_paceline_error(missing, "A task on a Connect server") if isinstance(missing, ImportError) else None
        raise needs or error from None
    # PySpark would refuse a session on a server beside the JVM of an earlier task. The next task in that JVM gets it back.
    session_pool.detach()
    before = {name: os.environ.get(name) for name in (MODE, connect.URL)}
    os.environ |= {MODE: "1", connect.URL: where.address}
    _forget_sessions()
    spark = SparkSession(connect.remote(where.master, tag))
    connect.keep_out_of_exit(spark.client)
    SparkSession._set_default_and_active_session(spark)
    try:
        yield spark
    finally:
        _forget_sessions()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        connect.leave(spark.client)


def _forget_sessions() -> None:
    from pyspark.sql.connect.session import SparkSession

    SparkSession._default_session = None
    SparkSession._active_session.session = None


def _open(spark: "SparkSession", own: Mapping[str, str], where: Target, name: str, within_s: float) -> str:
    """Create the session on the server with its conf; the version of Spark there."""
    version: list[str] = []
    setting: list[tuple[str, str]] = []

    def ask() -> None:
        version.append(spark.version)
        for key, value in own.items():
            setting[:] = [(key, value)]
            spark.conf.set(key, value)

    failure = connect.failure_within(ask, within_s)
    if failure is None:
        return version[0]
    status = status_of(failure)
    if status in REFUSALS:
        raise TokenRefusedError(f"The Connect server {where.address} does not accept the token of {name}: correct its password.")
    if setting and status not in {"UNAVAILABLE", "TIMEOUT"} and not connect.CLOSED.search(str(failure)):
        key, value = setting[0]
        shown = "***" if secrets_masker.looks_secret(key) else repr(value)
        raise FailTask(f"The conf {key} cannot be {shown}: {causes.sentence(str(failure))}")
    raise ConnectServerError(
        f"The Connect server {where.address} opened no session within {within_s:g} s ({_first_line(failure)}): correct {name}. "
        "A token or use_ssl needs a server, or a proxy before it, with TLS."
    )


def status_of(error: BaseException) -> str:
    """The name of the gRPC status of an error, such as UNAVAILABLE; TIMEOUT without an answer, and else empty."""
    if isinstance(error, TimeoutError):
        return "TIMEOUT"
    found = getattr(error, "getGrpcStatusCode", lambda: None)()
    if found is not None and found.name != "UNKNOWN":
        return str(found.name)
    named = STATUS.search(str(error))
    return named[1] if named else ""


def _first_line(error: BaseException) -> str:
    details = re.search(r'details = "([^"\n]*)"', str(error))
    return details[1] if details else str(error).strip().partition("\n")[0]


def _close(followed: Followed, url: str, ended: Status) -> None:
    """Close the session on the server, and store how it ended. If that fails, a worker closes it later."""
    within_s = INTERRUPTED_S if ended.phase is Phase.KILLED else followed.settings.kill_timeout
    try:
        connect.close(url, within_s=within_s)
    except ClusterUnreachableError as error:
        say(f"{error}. A worker of its queue keeps trying.", level="WARNING")
    else:
        followed.note(ended)


class Watched:
    """The progress of a session: the server sends that of each operation about every two seconds while it executes it.

    Clients of Spark 3.5 do not report it.
    """

    def __init__(self, spark: "SparkSession") -> None:
        self._lock = threading.Lock()
        self._ended = Progress()
        self._running: dict[str, Progress] = {}
        register: Callable[[Callable[..., None]], None] | None = getattr(spark, "registerProgressHandler", None)
        if register is not None:
            register(self)

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """What PySpark calls in the thread that waits for the operation."""
        key = operation_id or ""
        with self._lock:
            now = of_stages(stages or ())
            if done:
                self._running.pop(key, None)
                self._ended += Progress() if now is None else now
            elif now is not None:
                self._running[key] = now

    def look(self) -> Progress | None:
        """The progress of all operations so far; None if the server has reported none."""
        with self._lock:
            total, running = self._ended, tuple(self._running.values())
        for one in running:
            total += one
        stages = sorted((stage for one in running for stage in one.running), key=lambda stage: stage.id)
        return None if total == Progress() else dataclasses.replace(total, running=tuple(stages[:NAMED]))


def of_stages(stages: Any) -> Progress | None:
    """The sum of the stages of one operation, as PySpark describes them; None if there are none."""
    every = list(stages)
    if not every:
        return None
    return Progress(
        stages=len(every),
        stages_done=sum(stage.done for stage in every),
        tasks=sum(stage.num_tasks for stage in every),
        tasks_done=sum(stage.num_completed_tasks for stage in every),
        bytes_read=sum(stage.num_bytes_read for stage in every),
        running=tuple(
            Stage(id=stage.stage_id, name=f"stage {stage.stage_id}", tasks=stage.num_tasks, tasks_done=stage.num_completed_tasks)
            for stage in every
            if not stage.done
        ),
    )
