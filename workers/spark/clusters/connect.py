"""Applications that are processes on this machine: those of local masters, and those of Spark Connect, which have a session on the
server that is named after their tag.
"""

import dataclasses
import os
import re
import sys
import threading
import uuid
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote

import psutil

from paceline.exceptions import FailTask
from workers.spark import conf
from workers.spark.clusters import protocol
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Cluster, ClusterUnreachableError, Ids, Password, Phase, Status
from workers.supervision.descendants import kill_tree


class Local(Cluster):
    """The processes of this machine with the tag of an application in their command line."""

    masters = re.compile(r"local(\[.*\]|-cluster\[.*\])?")
    example = "local[N]"
    has_cluster_mode = False
    confirms_end = False

    def tagged(self, submission: Submission) -> Submission:
        """Let the driver listen on this machine only, unless the task sets another address."""
        return dataclasses.replace(submission, conf={**conf.LOOPBACK, **submission.conf})

    def find(self, tag: str, since: datetime) -> Ids | None:
        return Ids(driver_id=tag) if running(tag) else None

    def status(self, ids: Ids, tag: str) -> Status:
        return Status(Phase.RUNNING, "its process runs") if running(tag) else Status(Phase.KILLED, "its process has ended")

    def kill(self, ids: Ids) -> None:
        for process in running(ids.driver_id) if ids.driver_id else ():
            kill_tree(process.pid)

    def gone(self, ids: Ids, tag: str) -> bool:
        return not running(tag)


def running(tag: str) -> list[psutil.Process]:
    """The processes with a tag, except zombies."""
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or ()
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(tag in word.split() or word.endswith(tag) for word in words):
            processes.append(process)
    return processes


#: Seconds in which a server must close a session.
INTERRUPT_S = 10.0
#: The user of a session if the URL names none.
USER = "paceline"
#: The namespace of the UUIDs that turn tags into session IDs, the same in every process.
_SESSIONS = uuid.UUID("6f0c1c5e-6a44-4c0e-9a6e-2d1f0d7a9b11")


class Connect(Local):
    """A Connect server. The driver is a Python process on this machine, which the process table shows."""

    masters = re.compile(r"sc://\S+")
    example = "sc://host:port"
    needs_java = False
    signs_requests = True

    def __init__(self, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password) -> None:
        self._address = address
        self._conn_id = reach.get("conn_id")
        self._password = password

    def check(self, submission: Submission) -> None:
        if not submission.is_python:
            raise FailTask(
                f"A Connect server accepts only Python applications, not {submission.application or 'SQL'}: use another master."
            )
        for what, given in (("conf", submission.conf), ("options", submission.options)):
            if given:
                first = next(iter(given))
                raise FailTask(
                    f"A Connect server has its own configuration and accepts no {what} ({first}): remove it from the task."
                )

    def tagged(self, submission: Submission) -> Submission:
        return submission

    def client(self, submission: Submission) -> tuple[list[str], dict[str, str]]:
        """The unused option `-X paceline=TAG` lets the process be found."""
        environment = {**os.environ, **submission.environment, "SPARK_REMOTE": remote(submission.target.master, submission.tag)}
        return [sys.executable, "-X", f"paceline={submission.tag}", submission.application, *submission.arguments], environment

    def interrupt(self, submission: Submission, *, within_s: float) -> None:
        interrupt(submission.target.master, submission.tag, within_s=within_s)

    def find(self, tag: str, since: datetime) -> Ids | None:
        """Its session, which any worker can name: the server may still execute it although its driver has died elsewhere."""
        return Ids(driver_id=tag)

    def gone(self, ids: Ids, tag: str) -> bool:
        """Whether no driver runs here and the server has closed the session; then a driver on another machine cannot use it."""
        if running(tag):
            return False
        interrupt(self._master(), tag, within_s=protocol.left(INTERRUPT_S))
        return True

    def _master(self) -> str:
        """The address with the token of the connection, which is not stored with the application."""
        token = self._password(self._conn_id) if self._conn_id else None
        return f"{self._address}/;token={quote(token, safe='')}" if token else self._address


def session_of(tag: str) -> str:
    """The session ID of a tag."""
    return str(uuid.uuid5(_SESSIONS, tag))


def remote(master: str, tag: str) -> str:
    """The URL of the session of a tag, for the environment variable SPARK_REMOTE."""
    base, _, parameters = master.partition("/;")
    given = [part for part in parameters.split(";") if part and not part.startswith("session_id=")]
    if not any(part.startswith("user_id=") for part in given):
        given.append(f"user_id={USER}")  # a session belongs to a user, and the workers of a retry may have another one
    return f"{base.rstrip('/')}/;" + ";".join([*given, f"session_id={session_of(tag)}"])


def interrupt(master: str, tag: str, *, within_s: float) -> None:
    """Interrupt and stop the session of a tag on the server; ClusterUnreachableError if that takes longer than `within_s`."""
    failed: list[str] = ["it gave no answer"]

    def ask() -> None:
        try:
            from pyspark.sql.connect.session import SparkSession

            session = SparkSession.builder.remote(remote(master, tag)).create()
            session.interruptAll()
            session.stop()
            failed.clear()
        except (Exception, SystemExit) as error:  # PySpark exits if it mistakes the process for a doctest
            failed[0] = str(error)

    # In a thread, because the client retries for minutes if the server does not answer.
    asking = threading.Thread(target=ask, name="interrupt", daemon=True)
    asking.start()
    asking.join(within_s)
    if failed:
        raise ClusterUnreachableError(f"the Connect server did not stop its session: {failed[0]}")
