"""Processes of the machine: whether they still run, their health over HTTP, and a free port for one."""

import json
import socket
import urllib.error
import urllib.request
from typing import Any

import psutil


def is_running(process: psutil.Process | int) -> bool:
    """Whether a process, or the process with a PID, runs. A zombie does not."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return bool(found.is_running() and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def health(port: int) -> tuple[int, dict[str, Any]]:
    """The status and the body of `GET /health`; status 0 if no process listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
    except OSError:  # including urllib.error.URLError
        return 0, {}
