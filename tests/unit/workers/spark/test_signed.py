"""The signed requests to a Spark master's JWSFilter."""

import base64
import hashlib
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from paceline.authoring.connection import Connection
from paceline.exceptions import FailTask
from workers.spark.clusters import standalone, target

PASSWORD = "0123456789abcdef" * 3


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_the_password_signs_and_is_not_sent() -> None:
    kind, token = standalone.signed_headers("c", PASSWORD)["Authorization"].split(" ")

    head, claims, signature = token.split(".")
    assert kind == "Bearer"
    assert json.loads(decoded(head)) == {"alg": "HS256", "typ": "JWT"}
    assert time.time() < json.loads(decoded(claims))["exp"] <= time.time() + standalone.VALID_S
    assert decoded(signature) == hmac.digest(decoded(PASSWORD), f"{head}.{claims}".encode(), hashlib.sha256)
    assert PASSWORD not in token


def test_a_connection_without_a_password_signs_nothing() -> None:
    assert standalone.signed_headers("c", None) == standalone.signed_headers("c", "") == {}


@pytest.mark.parametrize("password", ["short", "no base64: \u00e9", "a" * 40])
def test_a_password_that_is_no_key_is_one_sentence(password: str) -> None:
    with pytest.raises(FailTask, match=r"connection 'c' .* 32 bytes or more"):
        standalone.signed_headers("c", password)


def test_the_stored_cluster_names_the_connection_and_not_its_password() -> None:
    found = target.choose(None, "cluster", None, Connection.from_uri("c", f"spark://:{PASSWORD}@m:7077?rest_port=6067"))

    assert found.reach == {"rest_port": "6067", "conn_id": "c"}
    assert PASSWORD not in repr(found)


class Master(BaseHTTPRequestHandler):
    """Answers like the pages and the REST server of a Spark master, and keeps the tokens by path."""

    tokens: ClassVar[dict[str, str | None]] = {}

    def do_GET(self) -> None:
        self.tokens[self.path] = self.headers["Authorization"]
        page: dict[str, Any] = {name: [] for name in standalone.LISTS}
        driver = {"action": "SubmissionStatusResponse", "success": True, "driverState": "RUNNING"}
        body = json.dumps({**page, **driver, "status": "ALIVE"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_requests_to_the_rest_server_are_signed_and_requests_to_the_pages_are_not() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Master) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_port)
        reach = {"conn_id": "c", "rest_port": port, "ui_port": port}
        cluster = standalone.Standalone("spark://127.0.0.1:7077", reach, "cluster", {"c": PASSWORD}.get)
        cluster.status(standalone.Ids("driver-1"), "tag")
        server.shutdown()

    assert Master.tokens["/json/"] is None
    assert str(Master.tokens["/v1/submissions/status/driver-1"]).startswith("Bearer ")
