"""Answers `GET /health` from threads of its own, so also while everything else in the process hangs: on a socket of this machine
that `paceline doctor --role` asks, and on a port if one is set.
"""

import contextlib
import http.client
import json
import logging
import os
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from scheduler.process.health import Health

log = logging.getLogger("paceline.health")

#: Seconds a client may take to ask.
PATIENCE_S = 5.0
#: Seconds a process may take to answer: it needs to look at a few numbers.
ANSWER_S = 3.0


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "paceline", ""
    timeout = PATIENCE_S
    health: Health

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/health":
            self._answer(404, {"error": "There is only /health here."})
            return
        report = self.health.report()
        self._answer(200 if report["status"] == "healthy" else 503, report)

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "local" if isinstance(self.client_address, str) else super().address_string()

    def log_message(self, format: str, *arguments: Any) -> None:
        """A question is no news."""


class _TcpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked is gone."""


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked is gone."""


class HealthServer:
    """Serves the health of this process until `close`. A place that is taken is said and then done without."""

    def __init__(self, health: Health, *, path: Path, address: str = "127.0.0.1", port: int = 0) -> None:
        handler = type("Handler", (_Handler,), {"health": health})
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
        # A child that outlived this process would hold its port.
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


def ask(path: Path) -> dict[str, Any] | None:
    """The report of the process behind a socket; None if there is none any more. TimeoutError if it does not answer."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(ANSWER_S)
    try:
        connection.sock.connect(str(path))
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        return None
    try:
        return _report(connection)
    except (ConnectionError, http.client.HTTPException):
        return None  # it ended meanwhile
    finally:
        connection.close()


def ask_port(address: str, port: int) -> dict[str, Any] | None:
    """The same, of the process at a port."""
    connection = http.client.HTTPConnection(address, port, timeout=ANSWER_S)
    try:
        return _report(connection)
    except (ConnectionError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _report(connection: http.client.HTTPConnection) -> dict[str, Any]:
    connection.request("GET", "/health")
    found = json.loads(connection.getresponse().read())
    if not isinstance(found, dict) or "parts" not in found:
        raise http.client.HTTPException("no health")
    return found
