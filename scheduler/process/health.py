"""The health of a process: its parts record when they last ran, and a server reports on them at any time.

INVARIANT: nothing here waits for a database, a broker or a thread of the process. A report must be possible while they hang. So
the server of `GET /health` and `GET /alive` has its own threads. The process may serve other pages beside these, such as `GET
/metrics`. It listens on a Unix socket, which `paceline doctor --role` reads, and on a TCP port if one is set.
"""

import contextlib
import http.client
import json
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

#: Seconds for which a database or broker may be unreachable: a restart of it takes less.
AWAY_S = 10.0
#: The parts that need no server. If one of them hangs, only a restart of the process helps.
OWN = frozenset({"loop", "event_loop", "task_stopper"})

#: Returns the fault of a part in one sentence, or None. The argument is the time on the monotonic clock.
Complaint = Callable[[float], str | None]


@dataclass(slots=True)
class StepHealth:
    """A recurring step, such as an iteration of a thread. It is unhealthy if it has not run for `limit_s` seconds."""

    what: str
    limit_s: float
    at: float = field(default_factory=time.monotonic)

    def ran(self) -> None:
        """Record that the step has just run."""
        self.at = time.monotonic()

    def __call__(self, now: float) -> str | None:
        silent_s = now - self.at
        return f"{self.what} for {silent_s:.0f} s." if silent_s > self.limit_s else None


@dataclass(slots=True)
class ServerHealth:
    """A server that this process uses. It is unhealthy if all requests have failed for `limit_s` seconds."""

    limit_s: float = AWAY_S
    since: float | None = None
    why: str = ""

    def answered(self) -> bool:
        """Record that a request succeeded. Returns whether the one before it failed."""
        was_away, self.since = self.since is not None, None
        return was_away

    def failed(self, why: str) -> bool:
        """Record that a request failed. Returns whether the one before it succeeded."""
        self.why = why
        is_first = self.since is None
        if is_first:
            self.since = time.monotonic()
        return is_first

    def __call__(self, now: float) -> str | None:
        since = self.since
        return self.why if since is not None and now - since > self.limit_s else None


@dataclass(slots=True)
class Health:
    """The parts of a process. A failing `vital` part makes it unhealthy. A failing `other` part is only degraded."""

    role: str
    #: Returns the current ID of the process in the registry.
    process: Callable[[], str]
    vital: Mapping[str, Complaint]
    other: Mapping[str, Complaint] = field(default_factory=dict)

    def hangs(self) -> bool:
        """Whether a part hangs that needs no server, so that a restart helps."""
        now = time.monotonic()
        return any(complain(now) is not None for name, complain in self.vital.items() if name in OWN)

    def report(self) -> dict[str, Any]:
        """Return the response of `GET /health`."""
        now = time.monotonic()
        parts = {name: _part(complain(now), "unhealthy") for name, complain in self.vital.items()}
        healthy = all(part["status"] == "healthy" for part in parts.values())
        parts |= {name: _part(complain(now), "degraded") for name, complain in self.other.items()}
        return {"status": "healthy" if healthy else "unhealthy", "role": self.role, "process": self.process(), "parts": parts}


def _part(complaint: str | None, status: str) -> dict[str, str]:
    return {"status": "healthy"} if complaint is None else {"status": status, "message": complaint}


log = logging.getLogger("paceline")


class VitalThread(threading.Thread):
    """A daemon thread for the lifetime of its process. A subclass defines `work`; without one, `target` is called.

    After an error that `work` does not handle, the process exits with code 1, so that its service manager starts it again and
    others take over. A process that has lost a duty would go on looking healthy.
    """

    def run(self) -> None:
        try:
            self.work()
        except BaseException:
            log.critical("The thread %s ended with an error, so this process ends.", self.name, exc_info=True)
            logging.shutdown()
            os._exit(1)

    def work(self) -> None:
        super().run()


server_log = logging.getLogger("paceline.health")

#: Seconds in which a client must send its request.
PATIENCE_S = 5.0
#: Seconds in which a process must answer. The report is only a few numbers.
ANSWER_S = 3.0
#: Returns the content type and the body of a page.
Page = Callable[[], tuple[str, bytes]]


class Handler(BaseHTTPRequestHandler):
    """The base of handlers that send small uncached pages. Requests are not logged."""

    server_version, sys_version = "paceline", ""
    timeout = PATIENCE_S

    def answer(self, code: int, body: dict[str, Any]) -> None:
        self.send(code, "application/json", json.dumps(body).encode())

    def send(self, code: int, content_type: str, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "local" if isinstance(self.client_address, str) else super().address_string()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do not log requests."""


class _HealthHandler(Handler):
    health: Health
    pages: Mapping[str, Page]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            report = self.health.report()
            self.answer(200 if report["status"] == "healthy" else 503, report)
        elif path == "/alive":
            hangs = self.health.hangs()
            self.answer(503 if hangs else 200, {"alive": not hangs})
        elif path in self.pages:
            self.send(200, *self.pages[path]())
        else:
            self.answer(404, {"error": f"There is only {', '.join(['/health', '/alive', *self.pages])} here."})


class _Threads(socketserver.ThreadingMixIn):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: the client has disconnected."""


class _TcpServer(_Threads, HTTPServer):
    pass


class _UnixServer(_Threads, socketserver.UnixStreamServer):
    pass


class HealthServer:
    """Serves the health of this process, and `pages` by path, until `close`.

    An address that cannot be bound is logged and skipped.
    """

    def __init__(
        self, health: Health, *, path: Path, address: str = "127.0.0.1", port: int = 0, pages: Mapping[str, Page] | None = None
    ) -> None:
        handler = type("Handler", (_HealthHandler,), {"health": health, "pages": pages or {}})
        self._servers: list[socketserver.TCPServer] = []
        with self._may_fail(f"on {path}"):
            path.unlink(missing_ok=True)
            self._servers.append(_UnixServer(str(path), handler))
            path.chmod(0o600)
        if port:
            with self._may_fail(f"at {address}:{port}; set another {health.role}.health_port"):
                self._servers.append(_TcpServer((address, port), handler))
        for server in self._servers:
            threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
        # A forked child that outlives this process would keep the port open.
        os.register_at_fork(after_in_child=self._let_go)

    def close(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.shutdown()
            server.server_close()

    def _let_go(self) -> None:
        for server in self._servers:
            server.socket.close()
        self._servers = []

    @staticmethod
    @contextlib.contextmanager
    def _may_fail(where: str) -> Any:
        try:
            yield
        except OSError as error:
            server_log.error("Health is not served %s: %s", where, error.strerror or error)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(str(self._path))


def ask(path: Path) -> dict[str, Any] | None:
    """Return the report of the process behind a Unix socket, or None if the process has ended.

    TimeoutError if it does not answer.
    """
    return _report(_UnixConnection(path))


def ask_port(address: str, port: int) -> dict[str, Any] | None:
    """Return the report of the process that listens on a TCP port, like `ask`."""
    return _report(http.client.HTTPConnection(address, port, timeout=ANSWER_S))


def _report(connection: http.client.HTTPConnection) -> dict[str, Any] | None:
    try:
        connection.request("GET", "/health")
        report = json.loads(connection.getresponse().read())
    except (ConnectionError, FileNotFoundError, http.client.HTTPException):
        return None  # the process has ended
    finally:
        connection.close()
    return report if isinstance(report, dict) and "parts" in report else None
