"""An HTTP proxy between a worker and a cluster manager. It can lose, delay, truncate and repeat requests and responses."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from enum import StrEnum

ENDLESS_S = 120.0


class Fault(StrEnum):
    """The treatment of one request."""

    #: The server handles it, but the client gets no response: the connection is closed.
    LOST_ANSWER = "lost answer"
    #: The client gets half of the response.
    CUT_OFF = "cut off"
    #: The client gets the response twice in a row.
    TWICE = "twice"
    #: The server handles it, but a gateway responds with JSON of its own.
    GATEWAY = "gateway"
    #: It is held, and reaches the server when it is released. The client has given up by then.
    HELD = "held"


class HttpProxy:
    """Forwards to one port of this machine, one request per connection."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._faults: list[tuple[str, Fault]] = []
        self._held = threading.Event()
        #: The requests to which a fault was applied.
        self.hit: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, name="http-proxy", daemon=True).start()

    def once(self, path: str, fault: Fault) -> None:
        """Apply a fault to the next request whose first line contains `path`."""
        self._faults.append((path, fault))

    def release(self) -> None:
        """Forward the requests that are held."""
        self._held.set()

    def close(self) -> None:
        self._held.set()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            question = _question(client)
            fault = self._fault(question)
            if fault is Fault.HELD:
                self._held.wait(ENDLESS_S)
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                server.sendall(question)
                answer = b"".join(iter(lambda: server.recv(65536), b""))
            client.sendall(_changed(answer, fault))

    def _fault(self, question: bytes) -> Fault | None:
        first_line = question.partition(b"\r\n")[0].decode()
        for one in self._faults:
            if one[0] in first_line:
                self._faults.remove(one)
                self.hit.append(first_line)
                return one[1]
        return None


def _changed(answer: bytes, fault: Fault | None) -> bytes:
    match fault:
        case Fault.LOST_ANSWER:
            return b""
        case Fault.CUT_OFF:
            return answer[: -len(answer.partition(b"\r\n\r\n")[2]) // 2]
        case Fault.TWICE:
            return answer + answer
        case Fault.GATEWAY:
            return b'HTTP/1.1 504 Gateway Timeout\r\nConnection: close\r\n\r\n{"message": "gateway timeout"}'
        case _:
            return answer


def _question(client: socket.socket) -> bytes:
    """Read a whole request: its head, and a body of the length that the head gives."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += _more(client)
    head, _, body = found.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while len(body) < sum(map(int, lengths)):
        body += _more(client)
    return head + b"\r\n\r\n" + body


def _more(client: socket.socket) -> bytes:
    if not (data := client.recv(65536)):
        raise ConnectionResetError
    return data


@contextlib.contextmanager
def between(target: int) -> Iterator[HttpProxy]:
    """A proxy that runs during the block."""
    proxy = HttpProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
