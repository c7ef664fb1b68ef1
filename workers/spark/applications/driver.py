"""A driver that runs here, as a child of the task: its output is read as it comes, and it ends with its task."""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scheduler.exceptions import FailTask, TaskTimeout
from scheduler.operators import process
from scheduler.settings import Settings
from workers.outcome import TaskStopped
from workers.spark import archive, java
from workers.spark.applications.following import LOOK_S, Followed, end_for, say
from workers.spark.clusters import command, connect
from workers.spark.clusters.command import Submission
from workers.spark.clusters.status import ApplicationError, Phase, Status, UnreachableError

#: Of the ten seconds that a child of a worker has to react five go to the process group; this is for the cluster.
CLUSTER_SHARE_S = 3.0


def run(made: Submission, followed: Followed, settings: Settings) -> None:
    """Run it to its end; ApplicationError if that is no good one. After an interruption nothing of it lives, or the log says so."""
    host = made.conf.get("spark.driver.host") or socket.gethostname()
    followed.check_current()
    try:
        ended = _start(made, settings, lambda line: followed.hear(line, host))
    except (TaskTimeout, TaskStopped) as interruption:
        _end_rest(made, followed, interruption)
        raise
    except BaseException:
        followed.note(Status(Phase.FAILED, "its driver could not be started"))
        raise
    if ended.exit_code != 0:
        said = process.describe(ended.exit_code)
        followed.note(Status(Phase.FAILED, said))
        raise ApplicationError(f"The Spark application ended with {said}; {followed.cause}")
    _verify(followed)


def output_of(made: Submission, settings: Settings) -> str:
    """What spark-submit prints while it hands an application over; ApplicationError if it fails."""
    said: list[str] = []
    ended = _start(made, settings, said.append)
    if ended.exit_code != 0:
        raise ApplicationError(f"spark-submit ended with {process.describe(ended.exit_code)}; its output is above.")
    return "".join(said)


def _start(made: Submission, settings: Settings, on_line: Callable[[str], None]) -> process.Ended:
    with tempfile.TemporaryDirectory(prefix="paceline-spark-") as folder:
        if made.target.kind == "connect":
            arguments, environment = _connect(made)
        else:
            secrets = _write(Path(folder) / "secrets.properties", command.properties(made.conf))
            sql_file = _write(Path(folder) / "statements.sql", made.sql or "")
            arguments = command.argv(made, binary=binary_of(made), secrets=secrets, sql_file=sql_file)
            environment = _environment(made, settings)
        say(command.shown(arguments))
        try:
            return process.run(arguments, env=environment, cwd=folder, on_line=on_line)
        except OSError as error:
            raise FailTask(f"{arguments[0]} cannot be started ({error.strerror}): correct spark_binary.") from None


def binary_of(made: Submission) -> str:
    """spark-submit: the one that is named, else that of the installed PySpark."""
    if made.target.binary:
        return made.target.binary
    from pyspark.find_spark_home import _find_spark_home

    return f"{_find_spark_home()}/bin/spark-submit"


def _environment(made: Submission, settings: Settings) -> dict[str, str]:
    found = java.find_java() or "java"
    return {
        **os.environ,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # spark-submit believes a JAVA_HOME without a Java in it, and fails; an empty one sends it to PATH.
        "JAVA_HOME": str(Path(found).parent.parent) if found.startswith(os.environ.get("JAVA_HOME") or "//") else "",
        "SPARK_SUBMIT_OPTS": java.submit_opts(*([] if made.target.binary else archive.options(settings))),
        **made.environment,
    }


def _connect(made: Submission) -> tuple[list[str], dict[str, str]]:
    """The client of a Connect server is Python alone; the tag is an option that nobody reads, for the process to be found by."""
    environment = {**os.environ, **made.environment, "SPARK_REMOTE": connect.remote(made.target.master, made.tag)}
    return [sys.executable, "-X", f"paceline={made.tag}", made.application, *made.arguments], environment


def _write(path: Path, text: str) -> str | None:
    """What no list of processes shall show, in a file that only its user can read; None for nothing."""
    if not text:
        return None
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return str(path)


def _end_rest(made: Submission, followed: Followed, interruption: BaseException) -> None:
    """The process group has ended; see that the cluster has noticed."""
    if made.target.kind == "connect":
        try:
            connect.interrupt(made.target.master, made.tag, within_s=CLUSTER_SHARE_S / 2)
        except UnreachableError as error:
            say(str(error), level="WARNING")
    end_for(interruption, followed, CLUSTER_SHARE_S / 2 if made.target.kind == "connect" else CLUSTER_SHARE_S)


def _verify(followed: Followed) -> None:
    """The driver's exit code is good; the cluster must not say otherwise. One that does not answer cannot."""
    deadline = time.monotonic() + followed.settings.kill_timeout
    status = Status(Phase.UNKNOWN, "the cluster was not asked")
    while time.monotonic() < deadline and not status.phase.is_end:
        try:
            found = followed.cluster.find(followed.job.tag, followed.job.submitted_at)
            if found is None:
                break
            status = followed.cluster.status(followed.ids.known(found), followed.job.tag)
        except UnreachableError as error:
            say(f"the cluster was not heard about the end of {followed.ids}: {error}", level="WARNING")
            break
        time.sleep(0.0 if status.phase.is_end else LOOK_S)
    if status.phase in {Phase.FAILED, Phase.KILLED} and followed.job.kind not in {"local", "connect"}:
        followed.note(status)
        raise ApplicationError(f"The driver ended with exit code 0, but the cluster says: {status.detail}.")
    followed.note(Status(Phase.FINISHED, "exit code 0", followed.ids))
