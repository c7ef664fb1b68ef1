"""Spark Connect: the application is a Python process here, and its session, named after the tag, is the server's part of it."""

import threading
import uuid

from workers.spark.clusters import local
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Run
from workers.spark.clusters.status import Ids, UnreachableError

#: Turns a tag into the id of a session, the same in any process.
_SESSIONS = uuid.UUID("6f0c1c5e-6a44-4c0e-9a6e-2d1f0d7a9b11")


class Connect(local.Local):
    """A server at an address; the process that is its client runs on this machine."""

    def __init__(self, address: str) -> None:
        self._address = address

    def submit(self, made: Submission, run: Run) -> Ids:
        raise UnreachableError("a Connect server has no deploy mode cluster")


def session_of(tag: str) -> str:
    """The session id of a tag."""
    return str(uuid.uuid5(_SESSIONS, tag))


def remote(master: str, tag: str) -> str:
    """The URL of the tag's own session, for the environment variable SPARK_REMOTE."""
    base, _, parameters = master.partition("/;")
    given = [part for part in parameters.split(";") if part and not part.startswith("session_id=")]
    return f"{base.rstrip('/')}/;" + ";".join([*given, f"session_id={session_of(tag)}"])


def interrupt(master: str, tag: str, *, within_s: float) -> None:
    """Have the server stop what the session of a tag still computes; UnreachableError if it does not within `within_s`."""
    failed: list[str] = ["it gave no answer"]

    def ask() -> None:
        try:
            from pyspark.sql.connect.session import SparkSession

            session = SparkSession.builder.remote(remote(master, tag)).create()
            session.interruptAll()
            session.stop()
            failed.clear()
        except (Exception, SystemExit) as error:  # PySpark exits in a process that it takes for a doctest
            failed[0] = str(error)

    # Its client asks a server that is away again for minutes.
    asking = threading.Thread(target=ask, name="interrupt", daemon=True)
    asking.start()
    asking.join(within_s)
    if failed:
        raise UnreachableError(f"the Connect server could not be told to stop its session: {failed[0]}")
