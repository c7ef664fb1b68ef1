"""Runs a task that submits an application: resumes or ends those of earlier tries, then submits and follows its own.

A driver on this machine is a child process of the task, whose output is read continuously, and which ends with the task.
"""

import dataclasses
import json
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline import secrets_masker
from paceline.authoring import running
from paceline.authoring.connection import Connection
from paceline.exceptions import FailTask, NotFoundError, PacelineError, TaskStopped, TaskTimeout
from paceline.operators import process
from paceline.operators.spark import SparkOperator
from scheduler.settings import Settings
from scheduler.store.worker.external_jobs import ExternalJob
from workers.process import progress, trace_properties
from workers.spark import causes, conf, iceberg, java
from workers.spark.applications.jobs import Jobs
from workers.spark.applications.tracking import LOOK_S, Followed, end_for, say
from workers.spark.clusters import command, protocol, target
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import (
    ApplicationError,
    Cluster,
    ClusterUnreachableError,
    Ids,
    Phase,
    Status,
    StatusUnknownError,
)
from workers.spark.iceberg import JarsMissingError

if TYPE_CHECKING:
    from scheduler.catalog.access import Access

#: A pool process has ten seconds to react to a stop. Five are for the process group, these are for the cluster.
CLUSTER_SHARE_S = 3.0


def run(submission: Submission, followed: Followed, settings: Settings) -> None:
    """Run the driver to its end; ApplicationError if it fails.

    After an interruption, nothing of the application is left, or the log has an error.
    """
    host = submission.conf.get("spark.driver.host") or socket.gethostname()
    followed.check_current()
    try:
        ended = _start(
            submission, settings, lambda line: followed.read_output(line, host), client=followed.cluster.client(submission)
        )
    except (TaskTimeout, TaskStopped) as interruption:
        _end_rest(submission, followed, interruption)
        raise
    except BaseException:
        followed.note(Status(Phase.FAILED, "its driver could not be started"))
        raise
    left = _left_on_server(submission, followed)
    if ended.exit_code != 0 and left is not None:
        # Its row stays open, so that the next try ends it before it submits another one.
        raise ApplicationError(
            f"The Spark application ended with {process.describe(ended.exit_code)}, but {left}; {followed.cause}"
        )
    if ended.exit_code != 0:
        exit_code = process.describe(ended.exit_code)
        followed.note(Status(Phase.FAILED, exit_code))
        raise ApplicationError(f"The Spark application ended with {exit_code}; {followed.cause}")
    _verify(followed)


def output_of(submission: Submission, settings: Settings) -> str:
    """Submit in cluster mode with spark-submit, and return its output; ApplicationError if it fails."""
    output: list[str] = []
    ended = _start(submission, settings, output.append)
    if ended.exit_code != 0:
        raise ApplicationError(f"spark-submit ended with {process.describe(ended.exit_code)}; its output is above.")
    return "".join(output)


def _start(
    submission: Submission,
    settings: Settings,
    on_line: Callable[[str], None],
    *,
    client: tuple[list[str], dict[str, str]] | None = None,
) -> process.Ended:
    with tempfile.TemporaryDirectory(prefix="paceline-spark-") as folder:
        if client is not None:
            arguments, environment = client
        else:
            binary = binary_of(submission)
            secrets = _secrets(Path(folder) / "secrets.properties", submission, binary)
            sql_file = _write(Path(folder) / "statements.sql", submission.sql or "")
            if submission.sql is not None:
                (Path(folder) / causes.NO_WAREHOUSE).touch()
            arguments = command.argv(submission, binary=binary, secrets=secrets, sql_file=sql_file)
            environment = _environment(submission, settings)
        say(command.shown(arguments))
        try:
            return process.run(arguments, env=environment, cwd=folder, on_line=on_line)
        except OSError as error:
            raise FailTask(f"{arguments[0]} cannot be started ({error.strerror}): correct spark_binary.") from None


def binary_of(submission: Submission) -> str:
    """The path of spark-submit: that of `spark_binary`, else that of the installed PySpark."""
    if submission.target.binary:
        return submission.target.binary
    return f"{java.spark_home()}/bin/spark-submit"


def _environment(submission: Submission, settings: Settings) -> dict[str, str]:
    options = [] if submission.target.binary else java.archive_options(settings)
    return {**java.environment(java.find_java() or "java", *options), **submission.environment}


def _secrets(path: Path, submission: Submission, binary: str) -> list[str]:
    """Write the secret part of the conf to a file, and return the options of spark-submit for it; none without secrets."""
    secrets = command.secret_properties(submission.conf)
    if not secrets:
        return []
    text, options = conf.as_properties_file(secrets, java.spark_of_binary(binary))
    _write(path, text)
    return ["--properties-file", str(path), *options]


def _write(path: Path, text: str) -> str | None:
    """Write text that must not show in process lists to a file that only this user can read; None without text."""
    if not text:
        return None
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return str(path)


def _left_on_server(submission: Submission, followed: Followed) -> str | None:
    """Close the session of a driver that has ended. Returns why that failed; then the server may still work for it."""
    try:
        followed.cluster.interrupt(submission, within_s=followed.settings.kill_timeout)
    except ClusterUnreachableError as error:
        say(str(error), level="WARNING")
        return str(error)
    return None


def _end_rest(submission: Submission, followed: Followed, interruption: BaseException) -> None:
    """After the process group has ended, make sure that the application has ended in the cluster."""
    deadline = time.monotonic() + CLUSTER_SHARE_S
    try:
        followed.cluster.interrupt(submission, within_s=CLUSTER_SHARE_S / 2)
    except ClusterUnreachableError as error:
        say(str(error), level="WARNING")
    end_for(interruption, followed, deadline - time.monotonic())


def _verify(followed: Followed) -> None:
    """After exit code 0 of the driver: ApplicationError if the cluster reports a failure. No answer is ignored."""
    deadline = time.monotonic() + followed.settings.kill_timeout
    status = Status(Phase.UNKNOWN, "the cluster was not asked")
    while time.monotonic() < deadline and not status.phase.is_end:
        try:
            ids = followed.cluster.find(followed.job.tag, followed.job.submitted_at)
            if ids is None:
                break
            status = followed.cluster.status(followed.ids.known(ids), followed.job.tag)
        except ClusterUnreachableError as error:
            say(f"the cluster did not confirm the end of {followed.ids}: {error}", level="WARNING")
            break
        time.sleep(0.0 if status.phase.is_end else LOOK_S)
    if status.phase in {Phase.FAILED, Phase.KILLED} and followed.cluster.confirms_end:
        followed.note(status)
        raise ApplicationError(f"The driver ended with exit code 0, but the cluster reports: {status.detail}.")
    followed.note(Status(Phase.FINISHED, "exit code 0", followed.ids))


#: Seconds for each request to the UI of an application.
UI_TIMEOUT_S = 2.0
#: The environment variables with which a Connect client sets the conf of its session, see pyspark/sql/connect/session.py.
CONNECT_CONF = "PYSPARK_REMOTE_INIT_CONF_0"
CONNECT_CONFS = "PYSPARK_REMOTE_INIT_CONF_LEN"


class TryCatalog(Protocol):
    """What a try may ask of the catalog of tables. No process list, log or page shows its token."""

    def give(self, *, elsewhere: bool) -> "Access | None":
        """What an application of this try needs; with `elsewhere`, one on another machine, if that can reach the catalog."""

    def take_over(self) -> None:
        """Let the application of an earlier try, which this one resumes, write as this try."""


class Submitter:
    """The function that a rendered operator calls."""

    def __init__(
        self,
        values: Mapping[str, Any],
        settings: Settings,
        jobs: Jobs,
        cluster_of: target.ClusterOf = target.cluster_of,
        catalog: TryCatalog | None = None,
    ) -> None:
        self._cluster_of = cluster_of
        self._values = values
        self._settings = settings
        self._jobs = jobs
        self._catalog = catalog

    def __call__(self, operator: SparkOperator) -> None:
        ti = self._values["ti"]
        where = target.choose(
            operator.master,
            getattr(operator, "deploy_mode", None),
            getattr(operator, "spark_binary", None),
            self._connection(operator),
        )
        submission = command.submission(operator, where, tag=self._jobs.tag(), name=f"{ti.dag_id}.{ti.task_id}")
        cluster = self._cluster_of(where.kind, where.address, where.reach, where.deploy_mode, self._password)
        cluster.check(submission)
        submission = submission.with_conf({**trace_properties.for_executors(self._settings, ti), **submission.conf})
        for secret in secrets_masker.secrets_in({**submission.conf, **submission.environment}):
            # The driver may print them, for example with --verbose.
            secrets_masker.mask_secret(secret)
        self._check(submission, cluster)
        former = self._settle(operator)
        if former is None:
            conf.check_master(
                where.address, timeout_s=self._settings.spark.submit_timeout, correct="the connection or the master of this task"
            )
            if self._catalog is not None:
                submission = added(submission, cluster, self._settings, self._catalog)
        elif self._catalog is not None:
            self._catalog.take_over()
        submission = cluster.tagged(submission).with_conf(cluster.environment_as_conf(submission))
        followed = former or self._followed(self._jobs.add(submission))
        with self._jobs.reported(lambda: _progress(followed.ids, jobs=bool(self._settings.tracing.otlp_endpoint))):
            if former is not None or where.is_cluster_mode:
                self._in_cluster(submission, followed, attached=former is not None)
            else:
                run(submission, followed, self._settings)

    def _connection(self, operator: SparkOperator) -> Connection | None:
        """The connection of the task; None if there is no connection with the default name, for `master` or a local Spark."""
        try:
            connection: Connection = self._values["conn"][operator.conn_id]
        except NotFoundError:
            if operator.conn_id == operator.conn_id_default:
                return None
            raise
        except PacelineError:
            if operator.master is not None:
                return None
            raise
        return connection

    def _password(self, conn_id: str) -> str | None:
        password: str | None = self._values["conn"][conn_id].password
        return password

    def _check(self, submission: Submission, cluster: Cluster) -> None:
        """FailTask if the application or one of its files does not exist, before anything is started."""
        in_cluster = submission.target.is_cluster_mode and not cluster.uploads_files
        values = {"application": submission.application, **submission.options}
        for field in ("keytab",) if in_cluster else ("application", "files", "py_files", "archives", "jars", "keytab"):
            conf.check_files(field, values.get(field, ""))
        for key in () if in_cluster else conf.FILES:
            conf.check_files(f"conf {key}", submission.conf.get(key, ""))
        if cluster.needs_java:
            java.check_java()
        if any(secrets_masker.redact(argument) != argument for argument in submission.arguments):
            say("an argument contains a secret of this task, and process lists show it: pass it in env_vars", level="WARNING")

    def _followed(self, job: ExternalJob) -> Followed:
        cluster = self._cluster_of(job.kind, job.master, job.reach, job.deploy_mode, self._password)
        return Followed(cluster, job, self._jobs, self._settings.spark)

    def _settle(self, operator: SparkOperator) -> Followed | None:
        """The application of a lost try that this try resumes; every other one is ended first."""
        attached: Followed | None = None
        for job in self._jobs.open():
            taken = self._jobs.take_over(job)
            if taken is None:
                continue
            followed = self._followed(taken)
            wanted = operator.reattach and attached is None and job.max_tries == self._jobs.max_tries
            try:
                if wanted and job.deploy_mode == "cluster":
                    attached = followed if self._resumes(followed, job) else None
                else:
                    say(f"ending the application of try {job.try_number}: {followed.ids}")
                    followed.end()
            except (TaskTimeout, TaskStopped) as interruption:
                end_for(interruption, followed, self._settings.spark.kill_timeout)
                raise
        return attached

    def _resumes(self, followed: Followed, job: ExternalJob) -> bool:
        """Whether to resume the application of a lost try: yes, unless it was never submitted or has failed."""
        if not followed.look_up():
            followed.note(Status(Phase.KILLED, "the cluster does not have it"))
            return False
        status = followed.status()
        followed.note(status)
        if status.phase in {Phase.FAILED, Phase.KILLED}:
            say(f"{followed.ids} of try {job.try_number} has {status.phase} while no worker followed it; submitting again")
            return False
        say(f"resuming {followed.ids}, which try {job.try_number} submitted")
        return True

    def _in_cluster(self, submission: Submission, followed: Followed, *, attached: bool) -> None:
        try:
            if not attached:
                self._submit(submission, followed)
            status = followed.to_the_end()
        except (TaskTimeout, TaskStopped) as interruption:
            end_for(interruption, followed, self._settings.spark.kill_timeout)
            raise
        if status.phase is not Phase.FINISHED:
            raise ApplicationError(f"The Spark application {followed.ids} has {status.phase} ({status.detail}); {followed.cause}")

    def _submit(self, submission: Submission, followed: Followed) -> None:
        """Submit. Without an answer the application may exist anyway: it is searched by its tag, and if it is not found, the
        row stays open and the error is a StatusUnknownError.
        """
        say(f"submitting {submission.application} to {submission.target.address} in cluster mode as {submission.tag}")
        ids, why = Ids(), "no application ID"
        followed.check_current()
        try:
            ids = followed.cluster.submit(submission, lambda given: output_of(given, self._settings))
        except ClusterUnreachableError as error:
            if error.refused:
                followed.note(Status(Phase.FAILED, str(error)))
                raise ApplicationError(f"The Spark master {submission.target.address} accepted no application ({error}).") from None
            why = f"no answer ({error})"
        except FailTask as refused:
            followed.note(Status(Phase.FAILED, str(refused)))
            raise
        except ApplicationError:
            # spark-submit may fail after the cluster has accepted the application.
            if not followed.look_once():
                raise
        if not ids.is_named and not followed.look_up():
            raise StatusUnknownError(
                f"{submission.target.address} gave {why}, and has no application with the tag {submission.tag}. It may still "
                "appear; the next try searches for it before it submits anything."
            )
        followed.ids = followed.ids.known(ids)
        followed.submitted()


def _progress(ids: Ids, *, jobs: bool = False) -> progress.Progress | None:
    """The progress of an application, from the REST API of its UI; None while its URL is unknown. ClusterUnreachableError."""
    if ids.ui_url is None:
        return None
    base = f"{ids.ui_url.rstrip('/')}/api/v1/applications"
    application_id = ids.application_id or _only(protocol.ask(base, timeout_s=UI_TIMEOUT_S))
    if application_id is None:
        return None
    stages: list[dict[str, Any]] = protocol.ask(f"{base}/{application_id}/stages", timeout_s=UI_TIMEOUT_S)
    executors: list[dict[str, Any]] = protocol.ask(f"{base}/{application_id}/allexecutors", timeout_s=UI_TIMEOUT_S)
    ran = protocol.ask(f"{base}/{application_id}/jobs", timeout_s=UI_TIMEOUT_S) if jobs else ()
    about = {"application_id": application_id, "ui_url": ids.ui_url, "jobs": progress.of_jobs(ran)}
    return progress.of_stages(stages, executors, **about)


def _only(applications: list[dict[str, Any]]) -> str | None:
    """The ID of the only application that the UI of a driver has."""
    return str(applications[0]["id"]) if applications else None


def added(submission: Submission, cluster: Cluster, settings: Settings, catalog: TryCatalog) -> Submission:
    """The submission with the catalog, if it can use it; else as it was, and the log has the reason."""
    on_server = not cluster.needs_java
    elsewhere = on_server or submission.target.is_cluster_mode
    access = catalog.give(elsewhere=elsewhere)
    if access is None:
        return _without(submission, settings, "Drivers on other machines need the address of a web process in tables.url.")
    secrets_masker.mask_secret(access.token)
    if on_server:
        return _on_server(submission, access)
    try:
        jars = _jars(submission, cluster, settings)
    except JarsMissingError as missing:
        return _without(submission, settings, str(missing))
    # Iceberg replaces `env:` in the conf, which Spark's pages show.
    conf = iceberg.session_conf(access, submission.conf, f"env:{running.TABLES_TOKEN}")
    options = {name: iceberg.joined(submission.options.get(name, ""), value) for name, value in jars.items()}
    return dataclasses.replace(
        submission,
        conf={**submission.conf, **conf, **iceberg.extensions(submission.conf)},
        options={**submission.options, **options},
        environment={**submission.environment, **_environment_of(access)},
    )


def _jars(submission: Submission, cluster: Cluster, settings: Settings) -> dict[str, str]:
    """The jars as options of spark-submit: files of this machine if the driver gets those, else packages. JarsMissingError."""
    spark = java.spark_of_binary(binary_of(submission))
    if settings.tables.spark_jars or cluster.uploads_files or not submission.target.is_cluster_mode:
        return {"jars": ",".join(iceberg.jars(settings, spark))}
    return {"packages": iceberg.packages_for(settings, spark)}


def _on_server(submission: Submission, access: "Access") -> Submission:
    """The submission with the conf of its session on a Connect server."""
    conf = json.dumps(iceberg.conf_on_server(access))
    environment = {CONNECT_CONFS: "1", CONNECT_CONF: conf, **submission.environment, **_environment_of(access)}
    return dataclasses.replace(submission, environment=environment)


def _environment_of(access: "Access") -> dict[str, str]:
    """What a driver, and paceline.tables in it, needs to use the catalog."""
    return {running.TABLES_URI: access.uri, running.TABLES_TOKEN: access.token}


def _without(submission: Submission, settings: Settings, why: str) -> Submission:
    say(f"this application has no catalog {settings.tables.catalog!r} of tables. {why}", level="WARNING")
    return submission
