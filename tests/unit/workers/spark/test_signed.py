"""What a Spark master's JWSFilter is sent."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest

from scheduler.authoring.connection import Connection
from scheduler.exceptions import FailTask
from workers.spark.clusters import rest, signed, standalone, target

PASSWORD = "0123456789abcdef" * 3


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_the_password_signs_and_is_not_sent() -> None:
    kind, token = signed.headers("c", PASSWORD)["Authorization"].split(" ")

    head, claims, signature = token.split(".")
    assert kind == "Bearer"
    assert json.loads(decoded(head)) == {"alg": "HS256", "typ": "JWT"}
    assert time.time() < json.loads(decoded(claims))["exp"] <= time.time() + signed.VALID_S
    assert decoded(signature) == hmac.digest(decoded(PASSWORD), f"{head}.{claims}".encode(), hashlib.sha256)
    assert PASSWORD not in token


def test_a_connection_without_a_password_signs_nothing() -> None:
    assert signed.headers("c", None) == signed.headers("c", "") == {}


@pytest.mark.parametrize("password", ["short", "no base64: \u00e9", "a" * 40])
def test_a_password_that_is_no_key_is_one_sentence(password: str) -> None:
    with pytest.raises(FailTask, match=r"connection 'c' .* 32 bytes or more"):
        signed.headers("c", password)


def test_what_is_stored_of_a_cluster_names_the_connection_and_not_its_password() -> None:
    found = target.choose(None, "cluster", None, Connection.from_uri("c", f"spark://:{PASSWORD}@m:7077?rest_port=6067"))

    assert found.reach == {"rest_port": "6067", "conn_id": "c"}
    assert PASSWORD not in repr(found)


def test_what_is_asked_of_the_rest_server_is_signed_and_of_the_pages_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def ask(url: str, *, body: object = None, headers: Any = None) -> dict[str, Any]:
        asked[url] = headers
        page: dict[str, Any] = {name: [] for name in standalone.LISTS}
        return {**page, "action": "SubmissionStatusResponse", "success": True, "driverState": "RUNNING", "status": "ALIVE"}

    monkeypatch.setattr(rest, "ask_object", ask)
    cluster = standalone.Standalone("spark://m:7077", {"conn_id": "c"}, has_driver=True, password={"c": PASSWORD}.get)
    cluster.status(standalone.Ids("driver-1"), "tag")

    assert asked["http://m:8080/json/"] is None
    assert asked["http://m:6066/v1/submissions/status/driver-1"]["Authorization"].startswith("Bearer ")
