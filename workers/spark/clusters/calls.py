"""Calls of a cluster by its command, and the timeout of each request, which is shorter if several requests share a deadline."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from workers.spark.clusters.protocol import ClusterUnreachableError

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


def run(command: Sequence[str], shown: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; ClusterUnreachableError, which names it as `shown`, if it cannot be run or takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=left(COMMAND_S), check=False, stdin=subprocess.DEVNULL
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
