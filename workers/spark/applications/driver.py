"""A driver on this machine: a child process of the task, whose output is read continuously, and which ends with the task."""

import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from paceline.exceptions import FailTask, TaskStopped, TaskTimeout
from paceline.operators import process
from scheduler.settings import Settings
from workers.spark import causes, conf, java
from workers.spark.applications.tracking import LOOK_S, Followed, end_for, say
from workers.spark.clusters import command
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import ApplicationError, ClusterUnreachableError, Phase, Status

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
