"""The catalog of a worker for its own tasks, on the loopback interface.

The worker holds the listening socket from its start. It starts the process that serves it with the first connection, which waits
in the socket meanwhile. If that process ends, the next connection starts another one. It ends with its worker.
"""

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping

from scheduler.process import hardening
from scheduler.process.health import VitalThread
from scheduler.settings import Settings
from workers.process.logs import worker_log
from workers.tables import access

#: Connections that may wait until the process is there.
BACKLOG = 128
#: Seconds before a process is started again that ended at once.
PAUSE_S = 1.0
#: Seconds that the process has to end.
ENDS_WITHIN_S = 5.0


class CatalogServer:
    """Create and start it in the worker, before the pool processes are forked."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = hardening.clean(environment.items())
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        #: The address of the catalog.
        self.uri = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ended, self._end = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = VitalThread(target=self._watch, name="catalog", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process that serves; None if there is none."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Let the tasks of this worker know the catalog, and wait for their first connection."""
        access.serve_at(self.uri)
        self._thread.start()

    def end(self) -> None:
        """End the process, and accept no more connections."""
        os.write(self._end, b"x")
        process = self._process
        if process is not None:
            process.terminate()
        self._thread.join(ENDS_WITHIN_S)
        if process is not None and process.poll() is None:
            process.kill()
        self._socket.close()

    def _watch(self) -> None:
        while not self._has_ended(wait_for_connection=True):
            try:
                self._process = self._start()
                ended = f"ended with status {self._process.wait()}"
            except OSError as error:
                ended = f"could not be started ({error})"
            self._process = None
            if self._has_ended(pause_s=PAUSE_S):
                return
            worker_log.warning("the catalog of tables %s; the next connection starts it again", ended)

    def _has_ended(self, *, wait_for_connection: bool = False, pause_s: float | None = None) -> bool:
        """Whether this is to end. Waits for a connection or for seconds."""
        waits = [self._ended, *([self._socket.fileno()] if wait_for_connection else [])]
        ready, _, _ = select.select(waits, [], [], pause_s)
        return self._ended in ready

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            # -P: nothing in the working directory can shadow Paceline.
            [sys.executable, "-P", "-m", "workers.tables.process", str(self._socket.fileno()), str(os.getpid())],
            stdin=subprocess.PIPE,
            pass_fds=(self._socket.fileno(),),
            env=self._environment,
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it ended during its start
            process.stdin.write(self._settings.model_dump_json().encode())
        return process
