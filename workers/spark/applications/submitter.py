"""Runs a task that submits an application: resumes or ends those of earlier tries, then submits and follows its own."""

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from paceline import secrets_masker
from paceline.authoring.connection import Connection
from paceline.exceptions import FailTask, NotFoundError, PacelineError, TaskStopped, TaskTimeout
from paceline.operators.spark import SparkOperator
from scheduler.settings import Settings
from scheduler.store.worker.external_jobs import ExternalJob
from workers.process import progress, trace_properties
from workers.spark import conf, iceberg, java, reachable
from workers.spark.applications import driver
from workers.spark.applications.driver import binary_of
from workers.spark.applications.jobs import Jobs
from workers.spark.applications.tracking import Followed, end_for, say
from workers.spark.clusters import calls, command, target
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
from workers.spark.iceberg import TOKEN_VARIABLE, JarsMissingError

if TYPE_CHECKING:
    from scheduler.catalog.access import Access

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
            reachable.check_master(
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
                driver.run(submission, followed, self._settings)

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
            ids = followed.cluster.submit(submission, lambda given: driver.output_of(given, self._settings))
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
    application_id = ids.application_id or _only(calls.ask(base, timeout_s=UI_TIMEOUT_S))
    if application_id is None:
        return None
    stages: list[dict[str, Any]] = calls.ask(f"{base}/{application_id}/stages", timeout_s=UI_TIMEOUT_S)
    executors: list[dict[str, Any]] = calls.ask(f"{base}/{application_id}/allexecutors", timeout_s=UI_TIMEOUT_S)
    ran = calls.ask(f"{base}/{application_id}/jobs", timeout_s=UI_TIMEOUT_S) if jobs else ()
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
    conf = iceberg.session_conf(access, submission.conf, f"env:{TOKEN_VARIABLE}")
    options = {name: iceberg.joined(submission.options.get(name, ""), value) for name, value in jars.items()}
    return dataclasses.replace(
        submission,
        conf={**submission.conf, **conf, **iceberg.extensions(submission.conf)},
        options={**submission.options, **options},
        environment={**submission.environment, TOKEN_VARIABLE: access.token},
    )


def _jars(submission: Submission, cluster: Cluster, settings: Settings) -> dict[str, str]:
    """The jars as options of spark-submit: files of this machine if the driver gets those, else packages. JarsMissingError."""
    spark = java.spark_of_binary(binary_of(submission))
    if settings.tables.spark_jars or cluster.uploads_files or not submission.target.is_cluster_mode:
        return {"jars": ",".join(iceberg.jars(settings, spark))}
    return {"packages": iceberg.packages_for(settings, spark)}


def _on_server(submission: Submission, access: "Access") -> Submission:
    """For a Connect server, which has its own jars: the conf of the session. It keeps its default catalog, and may lack Iceberg."""
    conf = {key: value for key, value in iceberg.session_conf(access, {}).items() if key.startswith("spark.sql.catalog.")}
    return dataclasses.replace(
        submission, environment={CONNECT_CONFS: "1", CONNECT_CONF: json.dumps(conf), **submission.environment}
    )


def _without(submission: Submission, settings: Settings, why: str) -> Submission:
    say(f"this application has no catalog {settings.tables.catalog!r} of tables. {why}", level="WARNING")
    return submission
