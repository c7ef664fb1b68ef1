"""Spark standalone: applications are submitted over the REST server of the master, and read from it and the JSON of its page."""

import base64
import functools
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from paceline.exceptions import FailTask
from workers.spark.clusters import command, protocol
from workers.spark.clusters.command import AS_CONF, Submission
from workers.spark.clusters.protocol import ENDS, Cluster, ClusterUnreachableError, Ids, Password, Phase, Run, Status

#: Java rejects a shorter key for HMAC-SHA256.
KEY_BYTES = 32
#: Seconds for which a signature is valid; the clocks of two machines may differ by less.
VALID_S = 300


def signed_headers(conn_id: str, password: str | None) -> dict[str, str]:
    """The header that proves the password of a connection without sending it; FailTask if it is not a valid key."""
    if not password:
        return {}
    try:
        key = base64.urlsafe_b64decode(password + "=" * (-len(password) % 4))
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise FailTask(
            f"The password of connection {conn_id!r} signs requests to the Spark master, so it must be {KEY_BYTES} bytes or more "
            "in URL-safe base64: set it to the JWSFilter.param.secretKey of the master."
        )
    claims = {"exp": int(time.time()) + VALID_S}
    signed = f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{_encoded(claims)}"
    return {"Authorization": f"Bearer {signed}.{_base64(hmac.digest(key, signed.encode(), hashlib.sha256))}"}


def _encoded(value: object) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


R = TypeVar("R")

REST_PORT, UI_PORT = "6066", "8080"
#: The driver of a Python application is spark-submit itself, in client mode, on a machine of the cluster.
PYTHON_CLASS = "org.apache.spark.deploy.SparkSubmit"
#: What Spark needs of Java 17. The REST server of Spark 4 adds it to the command of a driver, and that of Spark 3.5 does not: see
#: org.apache.spark.launcher.JavaModuleOptions. Java 8 ignores what it does not know.
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent",
    "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
)  # fmt: skip
OF_JAVA_17 = " ".join((
    "-XX:+IgnoreUnrecognizedVMOptions", *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED", "-Djdk.reflect.useDirectMethodHandle=false",
))  # fmt: skip
#: The states of applications in the page of a master, and of drivers in its REST server. Any other state is unknown.
APPLICATION_STATES = {"WAITING": Phase.SUBMITTED, **{state.name: state for state in (Phase.RUNNING, *ENDS)}}
DRIVER_STATES = {
    **{state.name: state for state in (Phase.SUBMITTED, Phase.RUNNING, *ENDS)},
    "RELAUNCHING": Phase.SUBMITTED,
    "ERROR": Phase.FAILED,
}
#: The lists in the JSON of a master's page; an answer without them is not from a master.
LISTS = ("workers", "activeapps", "completedapps", "activedrivers", "completeddrivers")
#: The line that ends the command line at the start of a driver's log.
COMMAND_END = "\n" + "=" * 40
_LOG_HEAD = re.compile(r"\A==== Bytes (\d+)-(\d+) of (\d+) of [^\n]* ====\n")
#: Bytes of a driver's output in one request, and the requests for it between two of the status.
CHUNK_BYTES, MOST_CHUNKS = 200_000, 50
HEAD_BYTES = 20_000
CLOCKS_DIFFER_S = 120.0


class Standalone(Cluster):
    """A cluster with one master, or with several of which one is active: spark://a:7077,b:7077."""

    masters = re.compile(r"spark://[^/\s]+")
    example = "spark://host:port"
    signs_requests = True
    uploads_files = False

    def __init__(self, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password) -> None:
        self._has_driver = deploy_mode == "cluster"
        self._conn_id = reach.get("conn_id")
        self._password = functools.cache(password)
        self._host: str | None = None
        hosts = [part.rpartition(":")[0] or part for part in address.removeprefix("spark://").split(",")]
        self._rest = [f"http://{host}:{reach.get('rest_port', REST_PORT)}/v1/submissions" for host in hosts]
        self._pages = [f"http://{host}:{reach.get('ui_port', UI_PORT)}" for host in hosts]

    def check(self, submission: Submission) -> None:
        name = submission.application
        if name.endswith(".jar") and not submission.java_class and submission.target.is_cluster_mode:
            raise FailTask(f"The application {name} is a jar: name its main class with java_class.")
        super().check(submission)

    def submit(self, submission: Submission, run: Run) -> Ids:
        """Submit over REST, also Python: spark-submit would reject Python here, and takes seconds to print an ID."""
        body, headers = request(submission), self._headers()
        for number, base in enumerate(self._rest, 1):
            try:
                return created(protocol.ask_object(f"{base}/create", body=body, headers=headers))
            except ClusterUnreachableError as error:
                # If a master may have accepted it, no other one is tried: then there could be two drivers.
                if not error.refused or number == len(self._rest):
                    raise
        raise AssertionError("a standalone cluster has a master")

    def find(self, tag: str, since: datetime) -> Ids | None:
        page = self._page()
        application = application_of(page, tag)
        driver = self._driver_of(page, tag, since) if self._has_driver else None
        return Ids(driver, application) if driver or application else None

    def status(self, ids: Ids, tag: str) -> Status:
        page = self._page()
        ids = ids.known(Ids(application_id=application_of(page, tag)))
        application = of_application(page, ids)
        if ids.driver_id is None:
            return application
        return agreed(of_driver(self._ask(f"status/{ids.driver_id}", "SubmissionStatusResponse")), application, ids)

    def kill(self, ids: Ids) -> None:
        if ids.driver_id is not None:
            self._ask(f"kill/{ids.driver_id}", "KillSubmissionResponse", body={})
        elif ids.application_id is not None:
            # For a driver in client mode, the page has a button but the REST server no call.
            self._each(self._pages, lambda page: protocol.text(f"{page}/app/kill/?id={ids.application_id}&terminate=true", body={}))

    def driver_host(self, ids: Ids) -> str | None:
        return self._host

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        if ids.driver_id is None:
            return ""
        page = worker_page(self._page(), ids.driver_id)
        if page is None:
            return ""
        self._host = urlsplit(page).hostname
        # The cause of a failure is at the end of stderr.
        return "".join(_new_output(page, ids.driver_id, kind, seen) for kind in ("stdout", "stderr"))

    def _driver_of(self, page: Mapping[str, Any], tag: str, since: datetime) -> str | None:
        """The driver with the tag in its command line, at the start of its log, because a master lists drivers without names."""
        # A driver that failed without a log never ran, or its worker is gone. One that succeeded may be ours.
        undecided = {listed["id"] for listed in page["activedrivers"]} | {
            listed["id"] for listed in page["completeddrivers"] if DRIVER_STATES.get(str(listed.get("state"))) is Phase.FINISHED
        }
        without_log: str | None = None
        for driver in young_drivers(page, since):
            where = worker_page(page, driver)
            command_line = None if where is None else _command_line(where, driver)
            if command_line is not None and tag in command_line:
                return driver
            if command_line is None and driver in undecided:
                without_log = driver
        if without_log is not None:
            raise ClusterUnreachableError(f"{without_log} has no log that can be read, so it is unknown whether it is {tag}")
        return None

    def _page(self) -> dict[str, Any]:
        return self._each(self._pages, lambda page: alive(protocol.ask_object(f"{page}/json/"), page))

    def _ask(self, path: str, action: str, body: object = None) -> dict[str, Any]:
        headers = self._headers()
        answer = functools.partial(protocol.ask_object, body=body, headers=headers)
        return self._each(self._rest, lambda base: of_action(answer(f"{base}/{path}"), action))

    def _headers(self) -> dict[str, str]:
        return signed_headers(self._conn_id, self._password(self._conn_id)) if self._conn_id else {}

    def _each(self, addresses: Sequence[str], ask: Callable[[str], R]) -> R:
        """The first answer of several masters."""
        last: ClusterUnreachableError | None = None
        for address in addresses:
            try:
                return ask(address)
            except ClusterUnreachableError as error:
                last = error
        assert last is not None
        raise last


# Pure: the contents of requests, and the interpretation of answers ---------------------------------------------------


def request(submission: Submission) -> dict[str, Any]:
    """The CreateSubmissionRequest; FailTask for a secret, which a standalone cluster would show in the driver's command line."""
    secret = command.secret_keys(submission.conf)
    if secret:
        raise FailTask(
            f"The conf {min(secret)} is secret, and a standalone cluster shows the conf of its drivers in their command lines: "
            "set it in env_vars, or in the spark-defaults.conf of the cluster's machines."
        )
    conf = {AS_CONF[name]: value for name, value in submission.options.items() if name in AS_CONF}
    refused = sorted(submission.options.keys() - AS_CONF.keys())
    if refused:
        raise FailTask(f"A driver in a standalone cluster accepts no {refused[0]}: remove it, or use deploy mode client.")
    properties = {
        **conf,
        **submission.conf,
        "spark.master": submission.target.master,
        "spark.app.name": submission.app_name,
        "spark.submit.deployMode": "client" if submission.is_python else "cluster",
    }
    arguments = list(submission.arguments)
    if submission.is_python:
        # spark-submit in the driver reads its conf only from its command line.
        others = [f"{key}={value}" for key, value in sorted(properties.items()) if key != "spark.master"]
        flags = [part for pair in others for part in ("--conf", pair)]
        arguments = ["--master", submission.target.master, *flags, submission.application, *arguments]
    elif submission.application:
        properties["spark.jars"] = ",".join(filter(None, (properties.get("spark.jars"), submission.application)))
    properties[JAVA_OPTIONS] = " ".join(filter(None, (OF_JAVA_17, properties.get(JAVA_OPTIONS))))
    return {
        "action": "CreateSubmissionRequest",
        "appResource": "" if submission.is_python else submission.application,
        "mainClass": PYTHON_CLASS if submission.is_python else submission.java_class or "",
        "appArgs": arguments,
        "clientSparkVersion": "",
        "environmentVariables": dict(submission.environment),
        "sparkProperties": properties,
    }


def alive(page: dict[str, Any], address: str) -> dict[str, Any]:
    """The JSON of a master's page; ClusterUnreachableError unless the master is active."""
    if page.get("status") != "ALIVE" or not all(isinstance(page.get(name), list) for name in LISTS):
        raise ClusterUnreachableError(f"the master at {address} is not ALIVE but {str(page.get('status', page))[:200]!r}")
    return page


def of_action(answer: dict[str, Any], action: str) -> dict[str, Any]:
    """An answer of an active master to one kind of request; ClusterUnreachableError for any other answer."""
    message = str(answer.get("message", ""))
    if answer.get("action") != action or _is_standby(message):
        raise ClusterUnreachableError(f"the master did not answer with {action} but with {message or answer!r:.200}")
    return answer


def created(answer: Mapping[str, Any]) -> Ids:
    """The driver ID of a CreateSubmissionResponse.

    FailTask if the master rejected the driver, ClusterUnreachableError if it may have accepted it.
    """
    driver, message = answer.get("submissionId"), str(answer.get("message") or answer)[:300]
    by_master = answer.get("action") in {"CreateSubmissionResponse", "ErrorResponse"}
    if by_master and answer.get("success") and driver:
        return Ids(driver_id=str(driver))
    if by_master and not answer.get("success"):
        if _is_standby(message):
            raise ClusterUnreachableError(f"the master accepted no driver: {message}", refused=True)
        raise FailTask(f"The Spark master accepted no driver: it answered {message!r}.")
    raise ClusterUnreachableError(f"the master returned no driver ID but answered {message!r}")


def of_driver(answer: Mapping[str, Any]) -> Status:
    """The status in a SubmissionStatusResponse. A master without a record of a driver may have lost it in a restart."""
    message = str(answer.get("driverState") or answer.get("message") or "")
    if not answer.get("success"):
        phase = Phase.UNKNOWN if message else Phase.NOT_FOUND
        return Status(phase, f"the master reports {message!r} for the driver" if message else "the master does not know the driver")
    phase = DRIVER_STATES.get(message, Phase.UNKNOWN)
    detail = f"driver {message}" if phase is not Phase.UNKNOWN else f"the master reports {message or 'nothing'!r} for the driver"
    return Status(phase, detail)


def of_application(page: Mapping[str, Any], ids: Ids) -> Status:
    """The status of an application in the master's page."""
    for listed in _applications(page):
        if listed["id"] == ids.application_id:
            return Status(APPLICATION_STATES.get(listed["state"], Phase.UNKNOWN), f"application {listed['state']}", ids)
    return Status(Phase.NOT_FOUND, "the master lists no such application", ids)


def agreed(driver: Status, application: Status, ids: Ids) -> Status:
    """The status of both together: the driver decides, but only if the application has ended too."""
    if driver.phase is Phase.NOT_FOUND and application.phase in {Phase.SUBMITTED, Phase.RUNNING}:
        return Status(application.phase, f"{driver.detail}, but {application.detail}", ids)
    if not driver.phase.is_end:
        return Status(driver.phase, driver.detail, ids)
    if application.phase in {Phase.SUBMITTED, Phase.RUNNING}:
        return Status(Phase.RUNNING, f"{driver.detail}, but {application.detail}", ids)
    if application.phase is Phase.UNKNOWN:
        return Status(Phase.UNKNOWN, f"{driver.detail}, but {application.detail}", ids)
    # A driver that ended early has no application.
    detail = driver.detail if application.phase is Phase.NOT_FOUND else f"{driver.detail}, {application.detail}"
    if driver.phase is Phase.FINISHED and application.phase in {Phase.FAILED, Phase.KILLED}:
        return Status(application.phase, detail, ids)
    return Status(driver.phase, detail, ids)


def application_of(page: Mapping[str, Any], tag: str) -> str | None:
    """The application with a tag in its name."""
    return next((str(listed["id"]) for listed in _applications(page) if tag in listed["name"]), None)


def young_drivers(page: Mapping[str, Any], since: datetime) -> list[str]:
    """The drivers that a master accepted after `since`, with a margin for different clocks."""
    earliest = since.timestamp() - CLOCKS_DIFFER_S
    return [listed["id"] for listed in _drivers(page) if float(listed["starttime"]) / 1000 >= earliest]


def worker_page(page: Mapping[str, Any], driver_id: str) -> str | None:
    """The address of the worker that runs a driver, whose page has the output of the driver."""
    worker = next((listed.get("worker") for listed in _drivers(page) if listed["id"] == driver_id), None)
    return next((listed["webuiaddress"] for listed in page.get("workers", ()) if listed["id"] == worker), None)


def new_text(answer: str, kind: str, seen: dict[str, int]) -> str:
    """The new part of a worker's log page, and update `seen`; empty if the answer was cut off."""
    head = _LOG_HEAD.match(answer)
    if head is None:
        return ""
    text = answer[head.end() :]
    if len(text.encode()) < int(head[2]) - int(head[1]):
        return ""
    seen[kind] = int(head[2])
    return text


def _command_line(page: str, driver_id: str) -> str | None:
    """The command line at the start of a driver's log; None while it is incomplete."""
    text, seen = "", {"stderr": 0}
    while COMMAND_END not in text:
        url = f"{page}/log/?driverId={driver_id}&logType=stderr&offset={seen['stderr']}&byteLength={HEAD_BYTES}"
        new = new_text(protocol.text(url), "stderr", seen)
        if not new:
            return None
        text += new
    return text.partition(COMMAND_END)[0]


def _new_output(page: str, driver_id: str, kind: str, seen: dict[str, int]) -> str:
    """All new output, in as many requests as it needs; at most MOST_CHUNKS, so that the status is read in between."""
    parts = []
    for _ in range(MOST_CHUNKS):
        offset = seen.get(kind, 0)
        url = f"{page}/log/?driverId={driver_id}&logType={kind}&offset={offset}&byteLength={CHUNK_BYTES}"
        parts.append(new_text(protocol.text(url), kind, seen))
        if seen.get(kind, 0) - offset < CHUNK_BYTES:
            break
    return "".join(parts)


def _is_standby(message: str) -> bool:
    """Whether a master reports that it is not active; then it did not process the request."""
    return "standby" in message.lower() or "not alive" in message.lower()


def _applications(page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from (*page.get("activeapps", ()), *page.get("completedapps", ()))


def _drivers(page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from (*page.get("activedrivers", ()), *page.get("completeddrivers", ()))
