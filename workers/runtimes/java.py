"""The JVM of a pool child: which Java, its start, its output in the log of the moment, its end with the child."""

import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery.platforms import set_pdeathsig

from scheduler.exceptions import FailTask, PacelineError

OLDEST_JAVA = 17
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 5.0
CHUNK_BYTES = 65536
INSTALL = f"install Java {OLDEST_JAVA} or newer (on Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."


class JvmError(PacelineError):
    """Spark's JVM did not start."""


class Jvm:
    """A JVM that waits for a Python driver. It dies with the thread that made it: make it in the main thread."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        java = check_java()
        read, write = os.pipe()
        try:
            with tempfile.TemporaryDirectory(prefix="paceline-jvm-") as folder:
                info = Path(folder) / "gateway"
                self._process = _start(java, conf, info, write)
                os.close(write)
                threading.Thread(target=_pump, args=(read,), name="jvm-output", daemon=True).start()
                self._output = read
                self.gateway = _connect(*self._wait_for(info))
        except BaseException:
            self.stop()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def settle(self, timeout_s: float = 0.2) -> None:
        """Wait a moment until what it has printed so far is written, so that it stands in the log of its task."""
        deadline = time.monotonic() + timeout_s
        while self.alive and time.monotonic() < deadline:
            (waiting,) = struct.unpack("i", fcntl.ioctl(self._output, termios.FIONREAD, b"\0" * 4))
            if waiting == 0:
                return
            time.sleep(0.005)

    def stop(self) -> None:
        """End it; kill it if it does not."""
        process = getattr(self, "_process", None)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_for(self, info: Path) -> tuple[int, str]:
        from pyspark.serializers import UTF8Deserializer, read_int

        deadline = time.monotonic() + START_TIMEOUT_S
        while not info.is_file():
            code = self._process.poll()
            if code is not None:
                time.sleep(0.1)  # lets the pump write the JVM's own words before ours
                raise JvmError(f"Spark's JVM ended while it started, with exit code {code}; its output is above.")
            if time.monotonic() > deadline:
                raise JvmError(f"Spark's JVM did not start within {START_TIMEOUT_S:g} s; its output is above.")
            time.sleep(0.02)
        with info.open("rb") as file:
            return read_int(file), UTF8Deserializer().loads(file)


def check_java() -> str:
    """The java to run Spark with; FailTask, saying what to install, if there is none that Spark can use."""
    java = find_java()
    if java is None:
        raise FailTask(f"Spark needs Java and found none: {INSTALL}")
    version = java_version(java)
    if version is not None and version < OLDEST_JAVA:
        raise FailTask(f"Spark needs Java {OLDEST_JAVA} and {java} is version {version}: {INSTALL}")
    return java


def find_java() -> str | None:
    """The java to run Spark with: that of JAVA_HOME, else the first in PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(f"{home}/bin/java", os.X_OK):
        return f"{home}/bin/java"
    return shutil.which("java")


def java_version(java: str) -> int | None:
    """Its feature release (8, 11, 17...); None if it does not say."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _start(java: str, conf: Mapping[str, str], info: Path, output: int) -> "subprocess.Popen[bytes]":
    from pyspark.find_spark_home import _find_spark_home

    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    environment = {
        **os.environ,
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # spark-submit believes a JAVA_HOME without a Java in it, and fails; an empty one sends it to PATH.
        "JAVA_HOME": str(Path(java).parent.parent) if java.startswith(os.environ.get("JAVA_HOME") or "//") else "",
    }
    return subprocess.Popen(
        [f"{_find_spark_home()}/bin/spark-submit", *options, "pyspark-shell"],
        stdin=subprocess.PIPE,  # the JVM also ends when this is closed
        stdout=output,
        stderr=output,
        env=environment,
        preexec_fn=_die_with_parent,  # noqa: PLW1509
    )


def _die_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_pdeathsig("SIGKILL")


def _connect(port: int, secret: str) -> Any:
    from pyspark.java_gateway import launch_gateway

    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        return launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def _pump(pipe: int) -> None:
    """Copy to whatever file descriptor 2 is at that moment: the log of the running task, else the worker's stderr."""
    while data := os.read(pipe, CHUNK_BYTES):
        while data:
            data = data[os.write(2, data) :]
    os.close(pipe)
