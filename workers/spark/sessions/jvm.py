"""The JVM of a pool process: its start, its output (copied to the current log), and its end with the process."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery.platforms import set_pdeathsig

from paceline.exceptions import PacelineError
from workers.process.logs import Losses
from workers.spark import causes, conf
from workers.spark.java import check_java, environment, find_spark, spark_home

PREFIX = "paceline-jvm-"


class Scratch:
    """A new folder that only this user can read, locked for the lifetime of this process."""

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock: int | None = _locked(self.path)

    def remove(self) -> None:
        """Remove the folder, after the JVM has ended."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            with contextlib.suppress(OSError):  # a task may have closed it
                os.close(self._lock)
            self._lock = None


def _locked(folder: Path) -> int:
    """Create and lock a file in the folder. The system releases the lock when this process ends in any way.

    The file gets its name only once it is locked, so that the sweep of another process cannot find it unlocked.
    """
    lock = os.open(folder / "unlocked", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "unlocked").rename(folder / "lock")
    return lock


def _sweep() -> None:
    """Remove the folders of killed processes, in which Spark stored blocks, artifacts and copies of jars."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with contextlib.suppress(OSError):  # in use, of another user, or removed by another sweep
            if path.parent.lstat().st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent)
            finally:
                os.close(lock)


#: The warehouse of a JVM whose conf names none. Its name is part of Spark's error for a table.
WAREHOUSE = causes.NO_WAREHOUSE
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 3.0
CHUNK_BYTES = 65536
#: The bytes of its last output that are kept, to find the cause of a failure.
KEPT_BYTES = 65536


class Names:
    """The packages and classes of a JVM by their names, such as `names.java.util.HashMap()`.

    The JVM is asked once for each name, and not with each use: py4j makes a round trip for every dot.
    """

    def __init__(self, namespace: Any) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        from py4j.java_gateway import JavaClass, JavaMember, JavaPackage

        found = getattr(self._namespace, name)
        if isinstance(found, JavaPackage | JavaClass):
            found = Names(found)
        elif not isinstance(found, JavaMember):  # a static field, whose value may change
            return found
        setattr(self, name, found)
        return found

    def __call__(self, *arguments: Any) -> Any:
        """A new object of this class."""
        return self._namespace(*arguments)


class JvmError(PacelineError):
    """Spark's JVM did not start, or does not answer."""


class Jvm:
    """A JVM that waits for a Python driver. It ends with the thread that creates it: create it in the main thread."""

    def __init__(self, settings: Mapping[str, str], options: Sequence[str] = ()) -> None:
        java = check_java()
        self._recent = bytearray()
        self._scratch = Scratch()
        properties, gateway = self._scratch.path / "spark.properties", self._scratch.path / "gateway"
        self._warehouse = self._scratch.path / WAREHOUSE
        # A file instead of arguments, which every user of the machine can read.
        text, reading = conf.as_properties_file({"spark.sql.warehouse.dir": str(self._warehouse), **settings}, find_spark())
        properties.write_text(text)
        read, write = os.pipe()
        try:
            self._process = _start(java, ["--properties-file", str(properties), *reading], gateway, write, options)
            os.close(write)
            self._output, self._output_file = read, os.fstat(read).st_ino
            self._pumping = threading.Thread(target=self._pump, name="jvm-output", daemon=True)
            self._pumping.start()
            self.gateway = _connect(*self._wait_for(gateway))
            self.names = Names(self.gateway.jvm)
            properties.unlink()
            gateway.unlink()
        except BaseException:
            self.stop()
            raise

    @property
    def alive(self) -> bool:
        """Whether it runs and its output is read. Unread, it would block on a full pipe."""
        return self._process.poll() is None and self._pumping.is_alive()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_lost_connection(self) -> bool:
        """Whether a task has closed the descriptor of a connection. The next connection gets its number, and then two threads would
        read each other's answers.
        """
        client = self.gateway._gateway_client
        port = client.java_parameters.port
        sockets = [one.socket for one in list(client.deque) if one.initiated_from_client and one.socket is not None]
        numbers = [one.fileno() for one in sockets if one.fileno() >= 0]
        return len(set(numbers)) < len(numbers) or any(_is_lost(one, port) for one in sockets)

    @contextlib.contextmanager
    def refusing_tables(self) -> Iterator[None]:
        """Let Spark create its catalog in the block, and afterwards no table in the folder of this JVM, with which it would end."""
        if self._warehouse.is_file():  # for the SparkContext before
            self._warehouse.unlink()
        yield
        with contextlib.suppress(OSError):  # the conf names another folder
            self._warehouse.rmdir()
            self._warehouse.touch()

    def clear_output(self) -> None:
        """Forget the output so far, at the start of a task."""
        self._recent.clear()

    def recent_output(self) -> str:
        """The last output since `clear_output`, at most KEPT_BYTES."""
        return bytes(self._recent).decode(errors="replace")

    def settle(self, timeout_s: float = 0.2) -> None:
        """Wait briefly until its output so far has been copied, so that it is in the log of its task."""
        deadline = time.monotonic() + timeout_s
        while self.alive and self._has_output() and time.monotonic() < deadline:
            (waiting,) = struct.unpack("i", fcntl.ioctl(self._output, termios.FIONREAD, b"\0" * 4))
            if waiting == 0:
                return
            time.sleep(0.005)

    @contextlib.contextmanager
    def must_answer(self, within_s: float) -> Iterator[None]:
        """Kill the JVM, and raise JvmError, if the `with` block takes longer.

        A call to a JVM that is stopped or out of memory may never return.
        """
        lock, over, killed = threading.Lock(), False, False

        def kill() -> None:
            nonlocal killed
            with lock:
                if not over:
                    killed = True
                    self._process.kill()

        timer = threading.Timer(within_s, kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                over = True
            if killed:
                raise JvmError(f"Spark's JVM did not answer within {within_s:g} s.")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the JVM; kill it if it does not end in time."""
        if hasattr(self, "gateway"):
            _disconnect(self.gateway)
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process is not None:
            _end(process, timeout_s)
        self._scratch.remove()

    def _wait_for(self, info: Path) -> tuple[int, str]:
        from pyspark.serializers import UTF8Deserializer, read_int

        deadline = time.monotonic() + START_TIMEOUT_S
        while not info.is_file():
            code = self._process.poll()
            if code is not None:
                time.sleep(0.1)  # lets the pump write the last output of the JVM before this error
                cause = causes.of_text(self.recent_output()) or "its output is above."
                raise JvmError(f"Spark's JVM ended while it started, with exit code {code}: {cause}")
            if time.monotonic() > deadline:
                raise JvmError(f"Spark's JVM did not start within {START_TIMEOUT_S:g} s; its output is above.")
            time.sleep(0.02)
        with info.open("rb") as file:
            return read_int(file), UTF8Deserializer().loads(file)

    def _pump(self) -> None:
        """Copy the output to the current file descriptor 2: the log of the running task, else the worker's stderr.

        Output that cannot be written is dropped, because the JVM would block on a full pipe.
        """
        losses = Losses()
        while self._has_output() and (data := os.read(self._output, CHUNK_BYTES)):
            self._recent += data
            del self._recent[:-KEPT_BYTES]
            losses.write(2, data)
        if self._has_output():
            os.close(self._output)

    def _has_output(self) -> bool:
        """Whether the descriptor is still the pipe: a task may have closed it, and its number may be in use again."""
        with contextlib.suppress(OSError):
            return os.fstat(self._output).st_ino == self._output_file
        return False


def _is_lost(connection: socket.socket, port: int) -> bool:
    """Whether the descriptor of a connection to `port` is closed, or is something else by now."""
    try:
        return connection.fileno() >= 0 and bool(connection.getpeername()[1] != port)
    except OSError as error:
        return error.errno != errno.ENOTCONN  # which the JVM has closed


def _end(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # a task may have closed it
        process.stdin.close()


def _start(java: str, conf_file: Sequence[str], gateway: Path, output: int, options: Sequence[str]) -> "subprocess.Popen[bytes]":
    own = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway)}
    return subprocess.Popen(
        [f"{spark_home()}/bin/spark-submit", *conf_file, "pyspark-shell"],
        stdin=subprocess.PIPE,  # the JVM also ends when this is closed
        stdout=output,
        stderr=output,
        env=environment(java, f"-Djava.io.tmpdir={gateway.parent}", *options) | own,
        preexec_fn=_die_with_parent,  # noqa: PLW1509
    )


def _die_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_pdeathsig("SIGKILL")


def _disconnect(gateway: Any) -> None:
    """Disconnect py4j before the JVM ends: it would keep calling the JVM to release objects, and log a stack trace each time."""
    from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER

    with contextlib.suppress(Exception):  # a task may have changed it
        client = gateway._gateway_client
        client.is_connected = False
        client.finalizer_deque.appendleft(SHUTDOWN_FINALIZER_WORKER)
        _shut(client.deque)
        client.close()
    with contextlib.suppress(Exception):
        # Those over which the JVM calls Python, for example for each batch of a stream.
        _shut(gateway._callback_server.connections)
        gateway.shutdown_callback_server()


def _shut(connections: Iterable[Any]) -> None:
    """End the reading from connections. Closing the stream of one waits for the thread that reads, which waits for the JVM."""
    for connection in list(connections):
        with contextlib.suppress(Exception):
            connection.socket.shutdown(socket.SHUT_RDWR)


def _connect(port: int, secret: str) -> Any:
    from pyspark.java_gateway import launch_gateway

    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        return launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
