"""A real Spark standalone cluster on loopback: a master with its REST submission server, and one worker."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler.settings import Settings
from support.waiting import eventually
from workers.spark import java

START_S = 120.0
#: For JVMs that need less CPU to start.
JVM = " ".join(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *java.archive_options(Settings())])
#: The key with which requests to the master's REST server must be signed.
PASSWORD = "0123456789abcdef0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class SparkCluster:
    """The ports and the folder of a cluster: the folder has the logs of its processes and the work folders of its applications."""

    port: int
    rest_port: int
    ui_port: int
    folder: Path
    #: The processes of master and worker, in this order.
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def uri(self, **extra: str) -> str:
        """The connection of kind `spark` that names this cluster."""
        more = "".join(f"&{key}={value}" for key, value in extra.items())
        return f"spark://:{PASSWORD}@127.0.0.1:{self.port}?rest_port={self.rest_port}&ui_port={self.ui_port}{more}"

    def state(self) -> dict[str, Any]:
        """The state that the master reports: workers, activeapps, completedapps, activedrivers, completeddrivers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ui_port}/json/", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def applications(self, tag: str = "") -> list[dict[str, Any]]:
        """Active and completed applications whose name contains `tag`."""
        state = self.state()
        return [app for app in [*state["activeapps"], *state["completedapps"]] if tag in app["name"]]

    def drivers(self) -> dict[str, str]:
        """The state of each driver of the master, by ID."""
        state = self.state()
        return {driver["id"]: driver["state"] for driver in [*state["activedrivers"], *state["completeddrivers"]]}

    def restart_master(self) -> None:
        """Kill the master and start another at the same address, which has no applications."""
        self.processes[0].kill()
        self.processes[0].wait()
        self.start_master()

    def start_master(self) -> None:
        rest = f"-Dspark.master.rest.enabled=true -Dspark.master.rest.host=127.0.0.1 -Dspark.master.rest.port={self.rest_port}"
        rest += " -Dspark.master.rest.filters=org.apache.spark.ui.JWSFilter"
        rest += f" -Dspark.org.apache.spark.ui.JWSFilter.param.secretKey={PASSWORD}"
        command = [
            "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self.port),
            "--webui-port", str(self.ui_port),
        ]  # fmt: skip
        self.processes[:1] = [_start(command, self.folder / "master.log", SPARK_MASTER_OPTS=rest)]

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """During the block, the master accepts connections and does not respond."""
        self.processes[0].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes[0].send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[SparkCluster]:
    """A master and a worker that run during the block. Their drivers and executors end with them."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = SparkCluster(*_free_ports(3), folder)
    worker = [
        "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "4", "--memory", "4g",
        "--work-dir", str(folder / "work"), cluster.master,
    ]  # fmt: skip
    processes = cluster.processes
    try:
        cluster.start_master()
        processes.append(_start(worker, folder / "worker.log"))
        eventually(lambda: _has_worker(cluster, processes), timeout=START_S, interval=0.2, message=lambda: _logs(folder))
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(command: list[str], log: Path, **environment: str) -> "subprocess.Popen[bytes]":
    from pyspark.find_spark_home import _find_spark_home

    home = _find_spark_home()
    with log.open("wb") as output:
        return subprocess.Popen(
            [f"{home}/bin/spark-class", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "SPARK_HOME": home,
                "SPARK_DAEMON_JAVA_OPTS": JVM,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_NO_DAEMONIZE": "1",
                "PYSPARK_PYTHON": sys.executable,
                **environment,
            },
        )


def _has_worker(cluster: SparkCluster, processes: "list[subprocess.Popen[bytes]]") -> bool:
    if any(process.poll() is not None for process in processes):
        raise RuntimeError(f"The Spark cluster did not start: {_logs(cluster.folder)}")
    try:
        return any(worker["state"] == "ALIVE" for worker in cluster.state()["workers"])
    except (OSError, json.JSONDecodeError):  # A master that starts answers /json/ with its page of HTML at first.
        return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(folder.glob("*.log")))
