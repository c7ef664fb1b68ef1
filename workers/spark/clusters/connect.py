"""Applications that are processes on this machine: those of local masters, and those of Spark Connect, which have a session on the
server that is named after their tag.
"""

import atexit
import contextlib
import dataclasses
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil

from paceline.authoring.connection import Connection
from paceline.exceptions import FailTask
from workers.spark import conf
from workers.spark.clusters import protocol
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Cluster, ClusterUnreachableError, Ids, Password, Phase, Status
from workers.supervision.descendants import kill_tree

if TYPE_CHECKING:
    from pyspark.sql.connect.client import SparkConnectClient


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
#: Seconds for a client to report that it has received its results.
LEAVE_S = 1.0
#: The port of a server whose connection names none.
PORT = 15002
#: The user of a session if the URL names none.
USER = "paceline"
#: The parameters of a URL that the row of an application keeps. Its token is not stored.
KEPT = ("use_ssl", "user_id")
#: What a server answers for a session that it has closed, or that an earlier process of the server had.
CLOSED = re.compile(r"INVALID_HANDLE\.SESSION_(?:CLOSED|NOT_FOUND|CHANGED)")
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
        self._parameters = [f"{name}={reach[name]}" for name in KEPT if name in reach]
        self._password = password
        #: The tags whose sessions this process has closed.
        self._closed: set[str] = set()

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
        close(remote(submission.target.master, submission.tag), within_s=within_s)
        self._closed.add(submission.tag)

    def find(self, tag: str, since: datetime) -> Ids | None:
        """Its session, which any worker can name: the server may still execute it although its driver has died elsewhere."""
        return Ids(driver_id=tag)

    def gone(self, ids: Ids, tag: str) -> bool:
        """Whether no driver runs here and the server has closed the session; then a driver on another machine cannot use it."""
        if running(tag):
            return False
        if tag not in self._closed:
            url = remote(self._master(), tag)
            _close_elsewhere(url) if self.forks else close(url, within_s=protocol.left(INTERRUPT_S))
            self._closed.add(tag)
        return True

    def _master(self) -> str:
        """The URL with the token of the connection, which is not stored with the application."""
        token = self._password(self._conn_id) if self._conn_id else None
        parameters = [*([f"token={quote(token, safe='')}"] if token else []), *self._parameters]
        return f"{self._address}/;{';'.join(parameters)}" if parameters else self._address


def check_token(connection: Connection) -> None:
    """FailTask if a connection has its token in a field that pages and logs show."""
    if "token" in connection.extra_dejson or ";token=" in (connection.host or ""):
        raise FailTask(
            f"The connection {connection.conn_id!r} has a token in its host or extra: make it the password, which is encrypted and "
            "masked in logs."
        )


def url_of(connection: Connection) -> str:
    """The URL of the server of a connection, as Airflow reads it: its login is the user and its password the token. FailTask."""
    host, _, given = (connection.host or "").removeprefix("sc://").partition("/;")
    parameters = [part for part in given.split(";") if part]
    ssl = connection.extra_dejson.get("use_ssl")
    if ssl is not None and str(ssl).lower() not in {"true", "false"}:
        raise FailTask(f"The use_ssl of connection {connection.conn_id!r} cannot be {ssl!r}: write true or false.")
    for name, value in (("user_id", connection.login), ("token", connection.password), ("use_ssl", ssl)):
        if value not in (None, ""):
            text = str(value).lower() if name == "use_ssl" else str(value)
            parameters.append(f"{name}={quote(text, safe='')}")
    port = connection.port or (None if re.search(r":\d+$", host) else PORT)
    address = f"sc://{host.rstrip('/')}" + (f":{port}" if port else "")
    return f"{address}/;{';'.join(parameters)}" if parameters else address


def kept(master: str) -> dict[str, str]:
    """The parameters of a URL that its application keeps, as they are written there."""
    pairs = (part.partition("=") for part in master.partition("/;")[2].split(";"))
    return {name: value for name, _, value in pairs if name in KEPT}


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


def close(url: str, *, within_s: float) -> None:
    """Let the server cancel what it executes in the session of a URL, and close it; then no client can use the session again.

    ClusterUnreachableError if that takes longer than `within_s`.
    """

    clients: list[SparkConnectClient] = []

    def ask() -> None:
        from pyspark.sql.connect.client import SparkConnectClient

        client = SparkConnectClient(url)
        clients.append(client)
        keep_out_of_exit(client)
        try:
            client.interrupt_all()
            if hasattr(client, "release_session"):  # since Spark 4.0
                client.release_session()
        except Exception as error:
            if not CLOSED.search(str(error)):
                raise

    try:
        failure = failure_within(ask, within_s)
    finally:
        for client in clients:
            leave(client)
    if failure is not None:
        raise ClusterUnreachableError(f"the Connect server did not stop its session: {failure}")


def keep_out_of_exit(client: "SparkConnectClient") -> None:
    """PySpark 4 keeps each client until the process ends, which then would wait minutes for a server that is away."""
    with contextlib.suppress(AttributeError):
        atexit.unregister(client._cleanup_ml_cache)


def leave(client: "SparkConnectClient") -> None:
    """Disconnect a client from its session, which the server keeps. Its requests that wait for an answer end."""
    if failure_within(client.close, LEAVE_S) is not None:
        with contextlib.suppress(Exception):
            client._channel.close()


def failure_within(work: Callable[[], None], within_s: float) -> BaseException | None:
    """Run `work` in a thread, because the client repeats a request for minutes if the server does not answer.

    Returns its error, a TimeoutError if it takes longer than `within_s`, or None.
    """
    failed: list[BaseException] = [TimeoutError("it gave no answer")]

    def run() -> None:
        try:
            work()
            failed.clear()
        except (Exception, SystemExit) as error:  # PySpark exits if it mistakes the process for a doctest
            failed[0] = error

    asking = threading.Thread(target=run, name="connect", daemon=True)
    asking.start()
    asking.join(within_s)
    return next(iter(failed), None)


#: The environment variable with the URL for `main`.
URL = "SPARK_REMOTE"
#: Seconds for a process with this client, which loads pandas, pyarrow and gRPC before it asks the server.
START_S = 60.0


def _close_elsewhere(url: str) -> None:
    """`close` in a process of its own: a process that has used gRPC must not fork one that uses it.

    It may take longer than `protocol.until` allows. Else, on a busy machine, no attempt would get as far as the server.
    """
    try:
        with protocol.until(time.monotonic() + START_S):
            done = protocol.run(
                [sys.executable, "-c", f"from {__name__} import main; main()"], "the client of Spark Connect",
                environment={**os.environ, URL: url}, most_s=START_S,
            )  # fmt: skip
    except ClusterUnreachableError:
        raise ClusterUnreachableError("the Connect server did not stop its session: it gave no answer") from None
    if done.returncode != 0:
        *_, reason = ["it gave no answer", *done.stderr.strip().splitlines()]
        raise ClusterUnreachableError(reason)


def main() -> None:
    """Close the session of the URL in the environment."""
    import pyspark.sql.connect.client  # noqa: F401 - loading it does not count as waiting for the server

    try:
        close(os.environ[URL], within_s=INTERRUPT_S)
    except ClusterUnreachableError as error:
        first, *_ = str(error).splitlines()
        sys.stderr.write(f"{first}\n")
        sys.stderr.flush()
        os._exit(1)  # without waiting for threads of the client, which repeat their requests for minutes
