"""HTTP requests to a cluster manager, with JSON answers and a timeout."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from workers.spark.clusters import calls
from workers.spark.clusters.status import ClusterUnreachableError

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
        with urllib.request.urlopen(request, timeout=calls.left(timeout_s)) as answer:  # noqa: S310
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
