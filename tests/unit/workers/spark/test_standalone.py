"""The answers of a standalone master, as those of Spark 4.3.0, and their meaning; signed requests to it."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from paceline.authoring.connection import Connection
from paceline.exceptions import FailTask
from workers.spark.applications import tracking
from workers.spark.clusters import standalone, target
from workers.spark.clusters.protocol import ClusterUnreachableError, Ids, Phase, Status

TAG = "paceline-0123abcd-7-2"
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def page(state: str = "RUNNING", **lists: Any) -> dict[str, Any]:
    application = {"id": "app-1", "name": f"d.t {TAG}", "state": state}
    key = "activeapps" if state in {"WAITING", "RUNNING"} else "completedapps"
    return (
        {"status": "ALIVE", "activeapps": [], "completedapps": [], "activedrivers": [], "completeddrivers": [], "workers": []}
        | {key: [application]}
        | lists
    )


@pytest.mark.parametrize(
    ("driver", "application", "phase"),
    [
        ("SUBMITTED", "none", Phase.SUBMITTED),
        ("RELAUNCHING", "none", Phase.SUBMITTED),
        ("RUNNING", "RUNNING", Phase.RUNNING),
        ("RUNNING", "FINISHED", Phase.RUNNING),
        ("FINISHED", "FINISHED", Phase.FINISHED),
        ("FINISHED", "none", Phase.FINISHED),
        ("FINISHED", "RUNNING", Phase.RUNNING),
        ("FINISHED", "FAILED", Phase.FAILED),
        ("FINISHED", "KILLED", Phase.KILLED),
        ("FAILED", "FINISHED", Phase.FAILED),
        ("ERROR", "none", Phase.FAILED),
        ("KILLED", "FINISHED", Phase.KILLED),
        ("UNKNOWN", "FINISHED", Phase.UNKNOWN),
        ("A_NEW_WORD", "RUNNING", Phase.UNKNOWN),
        *((end, "A_NEW_WORD", Phase.UNKNOWN) for end in ("FINISHED", "FAILED", "KILLED", "ERROR")),
    ],
)
def test_driver_and_application_have_to_agree_on_an_end(driver: str, application: str, phase: Phase) -> None:
    answer = standalone.of_driver({"success": True, "driverState": driver})
    listed = (
        standalone.of_application(page(application), Ids("driver-1", "app-1")) if application != "none" else Status(Phase.NOT_FOUND)
    )

    assert standalone.agreed(answer, listed, Ids("driver-1", "app-1")).phase is phase


def test_a_driver_that_the_master_does_not_have_is_not_found() -> None:
    assert standalone.of_driver({"success": False, "submissionId": "driver-1"}).phase is Phase.NOT_FOUND
    assert standalone.of_driver({"success": False, "message": "Exception from the cluster: x"}).phase is Phase.UNKNOWN


REFUSAL = {"action": "CreateSubmissionResponse", "success": False}
STANDBY = "Current state is not alive: STANDBY. Can only accept driver submissions in ALIVE state."


@pytest.mark.parametrize(
    ("answer", "error", "refused"),
    [
        (REFUSAL | {"message": "no"}, FailTask, None),
        ({"action": "ErrorResponse", "message": "Malformed request"}, FailTask, None),
        # A standby master surely took no driver.
        (REFUSAL | {"message": STANDBY}, ClusterUnreachableError, True),
        # After any other answer a driver may have been taken.
        ({}, ClusterUnreachableError, False),
        ({"action": "CreateSubmissionResponse", "success": True}, ClusterUnreachableError, False),
        ({"message": "bad gateway"}, ClusterUnreachableError, False),
    ],
)
def test_an_answer_tells_whether_a_driver_may_have_been_taken(
    answer: dict[str, Any], error: type[Exception], refused: bool | None
) -> None:
    with pytest.raises(error, match="accepted no driver" if error is FailTask else None) as caught:
        standalone.created(answer)

    assert getattr(caught.value, "refused", None) is refused


@pytest.mark.parametrize("answer", [{}, {"message": "bad gateway"}, page(status="RECOVERING"), page(activedrivers=None)])
def test_a_response_that_is_no_page_of_an_active_master_is_ignored(answer: dict[str, Any]) -> None:
    with pytest.raises(ClusterUnreachableError):
        standalone.alive(answer, "http://m:8080")


@pytest.mark.parametrize(("application", "phase"), [("RUNNING", Phase.RUNNING), ("FINISHED", Phase.NOT_FOUND)])
def test_a_driver_that_the_master_lost_is_running_while_its_application_is(application: str, phase: Phase) -> None:
    ids = Ids("driver-1", "app-1")
    driver = Status(Phase.NOT_FOUND, "the master does not know the driver")

    assert standalone.agreed(driver, standalone.of_application(page(application), ids), ids).phase is phase


def test_an_application_is_found_by_the_tag_in_its_name() -> None:
    assert standalone.application_of(page(), TAG) == "app-1"
    assert standalone.application_of(page("FINISHED"), TAG) == "app-1"
    assert standalone.application_of(page(), "paceline-0123abcd-7-3") is None


def test_only_drivers_that_started_later_are_examined() -> None:
    at = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    drivers = [
        {"id": name, "starttime": str(round((at.timestamp() + offset) * 1000))} for name, offset in (("old", -600), ("new", 1))
    ]

    assert standalone.young_drivers(page(activedrivers=drivers), at) == ["new"]


def test_ids_are_found_in_the_output_of_a_driver() -> None:
    output = (
        "26/11/21 17:29:04 INFO Utils: Successfully started service 'SparkUI' on port 4041.\n"
        "26/11/21 17:29:05 INFO StandaloneSchedulerBackend: Connected to Spark cluster with app ID app-20261121172905-0001\n"
    )

    assert tracking.ids_in(output, "h") == Ids(application_id="app-20261121172905-0001", ui_url="http://h:4041")
    assert tracking.ids_in("INFO SparkUI: Bound SparkUI to 0.0.0.0, and started at http://d:4040", None) == Ids(
        ui_url="http://d:4040"
    )
    output = "Spark Web UI available at http://127.0.0.1:4040\nSpark master: local[1], Application Id: local-1795284982702\n"
    assert tracking.ids_in(output, None) == Ids(application_id="local-1795284982702", ui_url="http://127.0.0.1:4040")
    assert tracking.ids_in("counted 1000 on port 7\n", "h") == Ids()


def test_the_output_goes_on_where_it_was_left() -> None:
    seen: dict[str, int] = {}

    first = standalone.new_text("==== Bytes 0-6 of 6 of /work/driver-1/stdout ====\nhello\n", "stdout", seen)
    second = standalone.new_text("==== Bytes 6-6 of 6 of /work/driver-1/stdout ====\n", "stdout", seen)

    assert (first, second, seen) == ("hello\n", "", {"stdout": 6})
    cut = "==== Bytes 6-90 of 90 of /work/driver-1/stdout ====\nhalf a line"
    assert (standalone.new_text(cut, "stdout", seen), seen) == ("", {"stdout": 6})
    assert standalone.new_text("Error: Log type must be one of stdout, stderr", "stdout", seen) == ""


@contextmanager
def served(answer: Callable[[str, str | None], str]) -> Iterator[int]:
    """A server on a port whose bodies are `answer(path, token)`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer(self.path, self.headers["Authorization"]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def test_output_that_is_longer_than_one_answer_is_read_to_its_end() -> None:
    log = "".join(f"line {number}\n" for number in range(100_000))

    def part(path: str, _: object) -> str:
        query = parse_qs(urlsplit(path).query)
        start = int(query["offset"][0])
        text = log[start : start + int(query["byteLength"][0])]
        return f"==== Bytes {start}-{start + len(text)} of {len(log)} of /work/log ====\n{text}"

    seen: dict[str, int] = {}
    with served(part) as port:
        assert standalone._new_output(f"http://127.0.0.1:{port}", "driver-1", "stderr", seen) == log
        assert standalone._new_output(f"http://127.0.0.1:{port}", "driver-1", "stderr", seen) == ""
    assert len(log) > 5 * standalone.CHUNK_BYTES


@pytest.mark.parametrize(
    ("listed", "state", "absent"),
    [
        ("activedrivers", "RUNNING", False),
        ("completeddrivers", "FINISHED", False),
        ("completeddrivers", "FAILED", True),
        ("completeddrivers", "KILLED", True),
    ],
)
def test_a_driver_without_a_readable_log_that_may_have_succeeded_is_not_absent(listed: str, state: str, absent: bool) -> None:
    driver = {"id": "driver-1", "state": state, "starttime": str(int(NOW.timestamp() * 1000)), "worker": "gone"}
    master = json.dumps(page("RUNNING", activeapps=[], **{listed: [driver]}))
    with served(lambda *_: master) as port:
        cluster = standalone.Standalone("spark://127.0.0.1:7077", {"ui_port": str(port)}, "cluster", lambda _: None)

        if absent:
            assert cluster.find(TAG, NOW) is None
        else:
            with pytest.raises(ClusterUnreachableError, match="unknown whether it is"):
                cluster.find(TAG, NOW)


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


def test_requests_to_the_rest_server_are_signed_and_requests_to_the_pages_are_not() -> None:
    tokens: dict[str, str | None] = {}

    def answer(path: str, token: str | None) -> str:
        tokens[path] = token
        driver = {"action": "SubmissionStatusResponse", "success": True, "driverState": "RUNNING"}
        return json.dumps({name: [] for name in standalone.LISTS} | driver | {"status": "ALIVE"})

    with served(answer) as port:
        reach = {"conn_id": "c", "rest_port": str(port), "ui_port": str(port)}
        cluster = standalone.Standalone("spark://127.0.0.1:7077", reach, "cluster", {"c": PASSWORD}.get)
        cluster.status(standalone.Ids("driver-1"), "tag")

    assert tokens["/json/"] is None
    assert str(tokens["/v1/submissions/status/driver-1"]).startswith("Bearer ")
