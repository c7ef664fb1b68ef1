"""A task that submits an application: what an earlier try left is settled first, then it is submitted and followed to its end."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.authoring import context
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.connection import Connection
from scheduler.exceptions import FailTask, NotFoundError, PacelineError, TaskTimeout
from scheduler.masking import secrets_masker
from scheduler.operators.spark_submit import SUBMITTER, SparkOperator
from scheduler.settings import Settings
from scheduler.store.worker.external_jobs import ExternalJob
from workers.outcome import TaskStopped
from workers.runtimes import python
from workers.spark import java, reachable
from workers.spark.applications import driver, stages
from workers.spark.applications.following import Followed, end_for, say
from workers.spark.applications.jobs import Jobs
from workers.spark.clusters import command, registry, target
from workers.spark.clusters.command import Submission
from workers.spark.clusters.status import ApplicationError, Ids, Phase, Status, StatusUnknownError, UnreachableError

#: Schemes of files that lie on this machine.
_HERE = re.compile(r"(file:/*)?/|(?![a-zA-Z][\w+.-]*:)")


def run(operator: AbstractOperator, values: context.Context, settings: Settings, jobs: Jobs) -> object:
    """Run a task of the operators in scheduler/operators/spark_submit."""
    return python.run(operator, {**values, SUBMITTER: Submitter(values, settings, jobs)})


class Submitter:
    """What a rendered operator calls."""

    def __init__(self, values: Mapping[str, Any], settings: Settings, jobs: Jobs) -> None:
        self._values = values
        self._settings = settings
        self._jobs = jobs

    def __call__(self, operator: SparkOperator) -> None:
        ti = self._values["ti"]
        where = target.choose(
            operator.master,
            getattr(operator, "deploy_mode", None),
            getattr(operator, "spark_binary", None),
            self._connection(operator),
        )
        made = command.submission(operator, where, tag=self._jobs.tag(), name=f"{ti.dag_id}.{ti.task_id}")
        for secret in secrets_masker.secrets_in({**made.conf, **made.environment}):
            # The driver may print them, as --verbose does.
            secrets_masker.mask_secret(secret)
        self._check(made)
        cluster = registry.of(where.kind, where.address, where.reach, where.deploy_mode, self._password)
        made = cluster.tagged(made).with_conf(command.environment_as_conf(made))
        former = self._settle(operator)
        if former is None:
            reachable.check_master(
                where.address, timeout_s=self._settings.spark.submit_timeout, correct="the connection or the master of this task"
            )
        followed = former or self._followed(self._jobs.add(made))
        with self._jobs.reported(lambda: stages.look(lambda: followed.ids)):
            if former is not None or where.is_cluster_mode:
                self._in_cluster(made, followed, attached=former is not None)
            else:
                driver.run(made, followed, self._settings)

    def _connection(self, operator: SparkOperator) -> Connection | None:
        """The named connection; without one of the default name the task's `master`, or a local Spark, is meant."""
        try:
            found: Connection = self._values["conn"][operator.conn_id]
        except NotFoundError:
            if operator.conn_id == operator.conn_id_default:
                return None
            raise
        except PacelineError:
            if operator.master is not None:
                return None
            raise
        return found

    def _password(self, conn_id: str) -> str | None:
        password: str | None = self._values["conn"][conn_id].password
        return password

    def _check(self, made: Submission) -> None:
        """FailTask for an application, or a file it needs, that is not there, before anything is started for it."""
        in_cluster = made.target.is_cluster_mode and made.target.kind in {"kubernetes", "standalone"}
        named = {"application": made.application} if not in_cluster else {}
        for field in ("files", "py_files", "archives", "jars", "keytab"):
            named[field] = made.options.get(field, "") if not in_cluster or field == "keytab" else ""
        for field, text in named.items():
            for name in filter(None, (one.strip() for one in text.split(","))):
                path = name.removeprefix("file://").partition("#")[0]
                if _HERE.match(name) and not path.startswith("/"):
                    raise FailTask(
                        f"The {field} {path} of this task is a relative path, and drivers start anywhere: write it in full."
                    )
                if _HERE.match(name) and not Path(path).is_file() and "*" not in path:
                    raise FailTask(f"The {field} {path} of this task is no file on this worker: create it, or correct the path.")
        if made.target.kind != "connect":
            java.check_java()
        if any(secrets_masker.redact(one) != one for one in made.arguments):
            say("an argument holds a secret of this task, and lists of processes show it: give it in env_vars", level="WARNING")

    def _followed(self, job: ExternalJob) -> Followed:
        cluster = registry.of(job.kind, job.master, job.reach, job.deploy_mode, self._password)
        return Followed(cluster, job, self._jobs, self._settings.spark)

    def _settle(self, operator: SparkOperator) -> Followed | None:
        """The application of a lost try that this one goes on with; every other one is ended first."""
        attached: Followed | None = None
        for job in self._jobs.open():
            mine = self._jobs.take_over(job)
            if mine is None:
                continue
            followed = self._followed(mine)
            wanted = operator.reattach and attached is None and job.max_tries == self._jobs.max_tries
            try:
                if wanted and job.deploy_mode == "cluster":
                    attached = followed if self._goes_on(followed, job) else None
                else:
                    say(f"ending what try {job.try_number} left: {followed.ids}")
                    followed.end()
            except (TaskTimeout, TaskStopped) as interruption:
                end_for(interruption, followed, self._settings.spark.kill_timeout)
                raise
        return attached

    def _goes_on(self, followed: Followed, job: ExternalJob) -> bool:
        """Whether to follow what a lost try left: yes, unless it was never submitted, or has failed meanwhile."""
        if not followed.look_up():
            followed.note(Status(Phase.KILLED, "the cluster has nothing of it"))
            return False
        status = followed.status()
        followed.note(status)
        if status.phase in {Phase.FAILED, Phase.KILLED}:
            say(f"{followed.ids} of try {job.try_number} has {status.phase} while nobody followed it; submitting anew")
            return False
        say(f"attaching to {followed.ids}, which try {job.try_number} submitted: nothing is submitted again")
        return True

    def _in_cluster(self, made: Submission, followed: Followed, *, attached: bool) -> None:
        try:
            if not attached:
                self._hand_over(made, followed)
            status = followed.to_the_end()
        except (TaskTimeout, TaskStopped) as interruption:
            end_for(interruption, followed, self._settings.spark.kill_timeout)
            raise
        if status.phase is not Phase.FINISHED:
            raise ApplicationError(f"The Spark application {followed.ids} has {status.phase} ({status.detail}); {followed.cause}")

    def _hand_over(self, made: Submission, followed: Followed) -> None:
        """Submit. Without an answer the application may be there, or be on its way: it is looked for under its tag, and the row
        stays open if it is not found. StatusUnknownError."""
        say(f"submitting {made.application} to {made.target.address} in cluster mode as {made.tag}")
        ids, why = Ids(), "no id of an application"
        followed.check_current()
        try:
            ids = followed.cluster.submit(made, lambda one: driver.output_of(one, self._settings))
        except UnreachableError as error:
            if error.refused:
                followed.note(Status(Phase.FAILED, str(error)))
                raise ApplicationError(f"The Spark master {made.target.address} took no application ({error}).") from None
            why = f"no answer ({error})"
        except FailTask as refused:
            followed.note(Status(Phase.FAILED, str(refused)))
            raise
        except ApplicationError:
            # spark-submit may fail after it has handed the application over.
            if not followed.look_once():
                raise
        if not ids.is_named and not followed.look_up():
            raise StatusUnknownError(
                f"{made.target.address} gave {why}, and has no application under the tag {made.tag}; one may still come: "
                "the next try looks for it before it submits anything."
            )
        followed.ids = followed.ids.known(ids)
        followed.submitted()
