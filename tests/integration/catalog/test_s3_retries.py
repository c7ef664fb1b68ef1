"""Requests to S3 that meet an error are sent again, as often as one client meets them."""

import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pyiceberg.io import load_file_io

from scheduler.catalog.access import Access
from scheduler.catalog.files import S3_REPEATS, Warehouse

#: More than pyarrow's own strategy repeats in the life of a client.
FILES = 120


class Busy(BaseHTTPRequestHandler):
    """Refuses the first request for each file, and all requests for `never`."""

    protocol_version = "HTTP/1.1"
    seen: Counter[str]

    def do_HEAD(self) -> None:
        self.seen[self.path] += 1
        busy = self.seen[self.path] == 1 or self.path.endswith("never")
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", "0" if busy else "5")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def busy() -> Iterator[tuple[Counter[str], dict[str, str]]]:
    seen: Counter[str] = Counter()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Busy,), {"seen": seen}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    yield seen, {"s3.access-key-id": "x", "s3.secret-access-key": "y", "s3.region": "us-east-1", "s3.endpoint": endpoint}
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("of_task", [False, True])
def test_a_client_of_s3_repeats_requests_as_long_as_it_lives(busy: tuple[Counter[str], dict[str, str]], of_task: bool) -> None:
    seen, storage = busy
    if of_task:
        io = load_file_io(Access("http://localhost", "token", "s3://lake/t", "lake", storage).properties, "s3://lake/t")
    else:
        io = Warehouse("s3://lake/t", storage).io

    assert [len(io.new_input(f"s3://lake/t/{number}")) for number in range(FILES)] == [5] * FILES
    assert set(seen.values()) == {2}
    with pytest.raises(OSError, match="503"):
        len(io.new_input("s3://lake/t/never"))
    assert seen["/lake/t/never"] == 1 + S3_REPEATS
