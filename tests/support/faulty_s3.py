"""A proxy before an S3 server that delays requests, refuses them, sends them twice, and loses answers of what was done."""

import contextlib
import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: How often each fault happens, of all requests.
SHARES = {"delayed": 0.1, "refused": 0.05, "twice": 0.05, "answer lost": 0.03, "failed after it was done": 0.03}
#: Headers of one connection only.
HOP = {"connection", "transfer-encoding", "keep-alive", "expect"}


class FaultyS3(ThreadingHTTPServer):
    """The proxy; `port` is that of the server behind it."""

    daemon_threads = True

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = port
        self.counts: Counter[str] = Counter()
        self._random, self._lock = random.Random(seed), threading.Lock()

    def choose(self) -> str:
        """The fault of the next request; empty for none."""
        with self._lock:
            self.counts["requests"] += 1
            (fault,) = self._random.choices([*SHARES, ""], [*SHARES.values(), 1 - sum(SHARES.values())])
            self.counts[fault] += bool(fault)
            return fault

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyS3

    def do_GET(self) -> None:
        fault = self.server.choose()
        body = self._body()
        if fault == "delayed":
            time.sleep(random.uniform(0.1, 1.0))
        if fault == "refused":
            return self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
        answer = self._forward(body)
        if fault == "twice":
            answer = self._forward(body)
        if fault == "answer lost":
            self.close_connection = True
            self.connection.close()
            return None
        if fault == "failed after it was done":
            return self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
        return self._answer(*answer)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        try:
            headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        length = next((value for key, value in headers if key.lower() == "content-length"), str(len(body)))
        for key, value in headers:
            if key.lower() not in HOP | {"content-length", "date", "server"}:
                self.send_header(key, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextlib.contextmanager
def faulty_s3(port: int, seed: int) -> Iterator[FaultyS3]:
    """Serve the proxy on a free port."""
    proxy = FaultyS3(port, seed)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    yield proxy
    proxy.shutdown()
    proxy.server_close()
    thread.join(10)
