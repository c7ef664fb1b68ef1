"""The server of `GET /health` and `GET /alive`. It has its own threads, so it answers even while the rest of the process hangs.

The process may serve other pages beside it, such as `GET /metrics`.

It listens on a Unix socket, which `paceline doctor --role` reads, and on a TCP port if one is set.
"""

import contextlib
import http.client
import json
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from scheduler.process.health import Health

log = logging.getLogger("paceline.health")

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
            log.error("Health is not served %s: %s", where, error.strerror or error)


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
