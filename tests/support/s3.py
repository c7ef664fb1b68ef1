"""moto's real S3-compatible server, in memory."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import requests

from support.waiting import eventually


@contextlib.contextmanager
def s3_server(port: int, log: Path, bucket: str) -> Iterator[None]:
    """A server with an empty bucket. Its data ends with it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            eventually(lambda: _answers(port), message=lambda: log.read_text())
            requests.put(f"http://127.0.0.1:{port}/{bucket}", timeout=10).raise_for_status()
            yield
        finally:
            server.terminate()


def _answers(port: int) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"http://127.0.0.1:{port}/", timeout=10).ok
    return False
