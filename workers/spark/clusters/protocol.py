"""The interface of a cluster, which each module of a cluster manager implements, and the calls by its command or over HTTP."""

import contextlib
import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, ClassVar

from paceline.exceptions import FailTask, PacelineError
from workers.spark.clusters.command import Submission


class Phase(StrEnum):
    """The phase of an application, the same for every cluster manager."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"
    UNKNOWN = "unknown"
    #: The cluster answers, but has no such application. Final only if it repeats this for a while.
    NOT_FOUND = "not found"

    @property
    def is_end(self) -> bool:
        return self in ENDS


ENDS = (Phase.FINISHED, Phase.FAILED, Phase.KILLED)


@dataclass(frozen=True, slots=True)
class Ids:
    """The IDs of an application in its cluster; None for an ID that is not known yet."""

    driver_id: str | None = None
    application_id: str | None = None
    ui_url: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether a request to the cluster can name it."""
        return self.driver_id is not None or self.application_id is not None

    def known(self, more: "Ids") -> "Ids":
        """These IDs, completed by those of `more`."""
        return Ids(self.driver_id or more.driver_id, self.application_id or more.application_id, self.ui_url or more.ui_url)

    def __str__(self) -> str:
        return (
            " and ".join(f"{name} {id_}" for name, id_ in (("driver", self.driver_id), ("application", self.application_id)) if id_)
            or "an application without an ID"
        )


@dataclass(frozen=True, slots=True)
class Status:
    """One answer of a cluster; `detail` is its text beside the phase."""

    phase: Phase
    detail: str = ""
    ids: Ids = Ids()


class ClusterUnreachableError(Exception):
    """A cluster did not answer, or not in a known form. `refused`: the request was certainly not processed."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class StatusUnknownError(PacelineError):
    """The status of an application is unknown. It may still run, and the next try requests the status again."""


class UnknownClusterError(PacelineError):
    """The stored kind of a cluster is one that only a later release has."""


class ApplicationError(PacelineError):
    """A submitted application failed."""


class ApplicationLivesError(PacelineError):
    """An application did not end within spark.kill_timeout after the request to end it."""


#: Runs spark-submit for a submission and returns its output.
Run = Callable[[Submission], str]
#: Returns the password of a connection by its ID. It is read when the first request is signed, and not stored.
Password = Callable[[str], str | None]


class Cluster(ABC):
    """A cluster manager: what its applications need, and the requests for following one.

    Each request raises ClusterUnreachableError if it gets no answer.
    """

    #: The URLs of its masters, and one of them for an error message.
    masters: ClassVar[re.Pattern[str]]
    example: ClassVar[str]
    has_cluster_mode: ClassVar[bool] = True
    #: Whether requests need the password of the connection.
    signs_requests: ClassVar[bool] = False
    #: Whether spark-submit uploads the files of an application in deploy mode cluster from this machine.
    uploads_files: ClassVar[bool] = True
    #: Whether Java starts the driver.
    needs_java: ClassVar[bool] = True
    #: The prefix of conf keys for the environment of a driver in the cluster. None if it needs no such conf.
    driver_environment: ClassVar[str | None] = None
    #: Whether the final status shows how an application ended whose driver ran on this machine.
    confirms_end: ClassVar[bool] = True

    #: Whether this process forks others, which must not inherit the state of a library for the cluster. Set by its owner.
    forks: bool = False

    def __init__(self, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password) -> None:  # noqa: B027
        """`reach` has the keys of Target.reach."""

    def check(self, submission: Submission) -> None:
        """FailTask if this cluster cannot run the application; sends no request."""
        if not submission.application and submission.target.is_cluster_mode:
            raise FailTask(
                "SQL runs only in deploy mode client: remove deploy_mode from its connection, or use another connection."
            )

    def tagged(self, submission: Submission) -> Submission:
        """The submission with its tag in the place where this cluster can search for it; by default in its name."""
        return submission

    def environment_as_conf(self, submission: Submission) -> dict[str, str]:
        """env_vars as conf, for a driver in a cluster that takes them as conf."""
        if self.driver_environment is None or not submission.target.is_cluster_mode:
            return {}
        return {f"{self.driver_environment}{key}": value for key, value in submission.environment.items()}

    def client(self, submission: Submission) -> tuple[list[str], dict[str, str]] | None:
        """The command and environment of a driver on this machine. None if spark-submit starts it."""
        return None

    def interrupt(self, submission: Submission, *, within_s: float) -> None:  # noqa: B027
        """End what a driver on this machine has left on a server when it has ended in any way; by default nothing."""

    def submit(self, submission: Submission, run: Run) -> Ids:
        """Submit an application whose driver runs in the cluster. Not called for a master without the deploy mode cluster.

        FailTask, and ClusterUnreachableError with `refused`, mean that the cluster certainly did not accept it. After any other
        error it may have.
        """
        raise NotImplementedError

    @abstractmethod
    def find(self, tag: str, since: datetime) -> Ids | None:
        """The IDs of the application with a tag, submitted after `since`; None if the cluster has none at the moment."""

    @abstractmethod
    def status(self, ids: Ids, tag: str) -> Status:
        """The status. It is final only if the cluster reports the end of both the driver and the application."""

    @abstractmethod
    def kill(self, ids: Ids) -> None:
        """Request its end. Only a later status shows whether it has ended."""

    def gone(self, ids: Ids, tag: str) -> bool | None:
        """Whether it has ended; None if the cluster has no record of it."""
        phase = self.status(ids, tag).phase
        return None if phase is Phase.NOT_FOUND else phase.is_end

    def driver_host(self, ids: Ids) -> str | None:
        """The host of the driver's UI, if known; sends no request."""
        return None

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        """The output of the driver since the last call; `seen` stores the position between calls."""
        return ""


COMMAND_S = 30.0

_deadline: float | None = None


@contextlib.contextmanager
def until(deadline: float) -> Iterator[None]:
    """Limit all requests inside the `with` block to `deadline`, by the monotonic clock: ending an application must be quick."""
    global _deadline  # noqa: PLW0603 - a process ends one application at a time
    before, _deadline = _deadline, deadline
    try:
        yield
    finally:
        _deadline = before


def left(most_s: float) -> float:
    """The seconds that a request may take, at most `most_s`."""
    return most_s if _deadline is None else max(0.1, min(most_s, _deadline - time.monotonic()))


def run(
    command: Sequence[str], shown: str, *, environment: Mapping[str, str] | None = None, most_s: float = COMMAND_S
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; ClusterUnreachableError, which names it as `shown`, if it cannot be run or takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=left(most_s), check=False, stdin=subprocess.DEVNULL, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterUnreachableError(f"{shown} gave no answer ({error})") from None


TIMEOUT_S = 5.0


def ask(url: str, *, body: object = None, headers: Mapping[str, str] = {}, timeout_s: float = TIMEOUT_S) -> Any:
    """The JSON answer of `url`, also for an error status with a JSON body; ClusterUnreachableError."""
    try:
        return json.loads(text(url, body=body, headers=headers, timeout_s=timeout_s))
    except (ValueError, RecursionError):
        raise ClusterUnreachableError(f"{url} did not answer with JSON") from None


def ask_object(url: str, *, body: object = None, headers: Mapping[str, str] = {}) -> dict[str, Any]:
    """The same, if the answer is a JSON object; ClusterUnreachableError for any other JSON."""
    answer = ask(url, body=body, headers=headers)
    if not isinstance(answer, dict):
        raise ClusterUnreachableError(f"{url} answered with a JSON {type(answer).__name__}, not an object")
    return answer


def text(
    url: str, *, body: object = None, method: str | None = None, headers: Mapping[str, str] = {}, timeout_s: float = TIMEOUT_S
) -> str:
    """The body of the answer of `url`; ClusterUnreachableError names the URL and the reason."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json;charset=UTF-8", **headers}
    request = urllib.request.Request(url, data, sent, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=left(timeout_s)) as answer:  # noqa: S310
            return str(answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        body_text = _body(error)
        if error.code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            advice = "give the connection the password that the server expects"
            raise ClusterUnreachableError(f"{url} answers {error.code} {error.reason}: {advice}", refused=True) from None
        # 5xx may be the answer of a gateway, and does not show whether the request was processed.
        if error.code < HTTPStatus.INTERNAL_SERVER_ERROR and body_text.lstrip().startswith("{"):
            return body_text
        refused = error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != HTTPStatus.REQUEST_TIMEOUT
        raise ClusterUnreachableError(f"{url} answers {error.code} {error.reason}", refused=refused) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        refused = isinstance(reason, ConnectionRefusedError | socket.gaierror)
        raise ClusterUnreachableError(f"{url} does not answer ({reason})", refused=refused) from None


def _body(error: urllib.error.HTTPError) -> str:
    """The body of an error status; empty if it was cut off."""
    with error:
        try:
            return error.read().decode("utf-8", "replace")
        except (OSError, HTTPException):
            return ""
