"""A real Spark Connect server on loopback, which lets in who has its token."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.spark_cluster import JVM
from support.waiting import eventually
from workers.spark import java

START_S = 120.0
TOKEN = "to/ken of the server"


def missing() -> str | None:
    """Why no server can be used here; None if one can."""
    if importlib.util.find_spec("grpc") is None:
        return "the packages of paceline[connect] are not installed"
    if not any(Path(java.spark_home(), "jars").glob("spark-connect_*.jar")):
        return "this Spark has no Connect server among its jars"
    return None


@dataclass
class ConnectServer:
    """The ports of a server, its folder with its log, and its process."""

    port: int
    ui_port: int
    folder: Path
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    #: Conf beside the one below.
    conf: dict[str, str] = field(default_factory=dict)
    token: str = TOKEN

    def connection(self, *, password: str | None = None, **more: Any) -> str:
        """The connection of type spark_connect that names it. Only for `localhost`, the client sends a token without TLS."""
        given = {"conn_type": "spark_connect", "host": "localhost", "port": self.port, "password": password or self.token}
        return json.dumps({**given, **more})

    def jobs(self, status: str = "") -> list[dict[str, Any]]:
        """The Spark jobs of all its sessions, with one status if it is given; none before the first session."""
        base = f"http://127.0.0.1:{self.ui_port}/api/v1/applications"
        try:
            (application,) = _read(base)
            found: list[dict[str, Any]] = _read(f"{base}/{application['id']}/jobs")
        except (OSError, ValueError):
            return []
        return [job for job in found if job["status"] == status or not status]

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        confs = {
            "spark.master": "local[2]",
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.progress.reportInterval": "200ms",
            "spark.ui.port": str(self.ui_port),
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(self.folder),
            **self.conf,
        }
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        options = [part for key, value in confs.items() for part in ("--conf", f"{key}={value}")]
        with (self.folder / "server.log").open("ab") as output:
            self.processes[:] = [
                subprocess.Popen(
                    [f"{java.spark_home()}/bin/spark-submit", *options, *server],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env={
                        **os.environ,
                        "SPARK_SUBMIT_OPTS": JVM,
                        "SPARK_LOCAL_IP": "127.0.0.1",
                        "PYSPARK_PYTHON": sys.executable,
                        "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token,
                    },
                )
            ]
        eventually(self._listens, timeout=START_S, interval=0.2, message=self.log)

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def _listens(self) -> bool:
        if self.processes[0].poll() is not None:
            raise RuntimeError(f"The Connect server did not start: {self.log()[-3000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


@contextlib.contextmanager
def running_server(folder: Path, conf: dict[str, str] | None = None, token: str = TOKEN) -> Iterator[ConnectServer]:
    """A server, with more `conf`, that runs during the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(2)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        server = ConnectServer(*(int(probe.getsockname()[1]) for probe in probes), folder, conf=conf or {}, token=token)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
