"""The process of a worker's pooler (scheduler/store/worker/pooler.py).

It is forked like the task killer, before the worker has threads and pool processes. The worker holds the listening socket: if the
process ends, requests wait in that socket until the worker has forked another one.
"""

import contextlib
import ctypes
import gc
import os
import shutil
import signal
import socket
import tempfile
from pathlib import Path

from scheduler.process.hardening import die_with_parent
from scheduler.settings import Settings
from scheduler.store.worker.pooler import Pooler
from workers.process.logs import worker_log

#: Clients that may wait until the process is there. They are pool processes, and processes that user code forks from them.
BACKLOG = 1024
#: The signals that end the worker. Pool processes report while it ends, so the pooler ends after it.
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
DESCRIPTORS = 65_536
#: Its name in lists of processes.
NAME = "pooler"
PR_SET_NAME = 15


class PoolerProcess:
    """Create it in the worker, and start it in the main thread before any other thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker = os.getpid()
        # The path of a socket is short: the folder of this worker may be too deep.
        self._folder = tempfile.mkdtemp(prefix="paceline-")
        #: Where pool processes reach it.
        self.address = str(Path(self._folder) / "pooler")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(BACKLOG)
        self.pid: int | None = None

    def start(self) -> None:
        """Fork the process. It dies with the worker."""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._serve()
            except BaseException:
                worker_log.exception("the pooler ends")
            finally:
                os._exit(1)

    def keep(self) -> None:
        """Start the process again if it has ended."""
        if self.pid is None:
            return
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                return
        worker_log.warning("the pooler of this worker has ended; it starts again, and pool processes repeat what was not answered")
        self.start()

    def end(self) -> None:
        """End the process, because the worker has shut down or restarts."""
        pid, self.pid = self.pid, None
        if pid is None or os.getpid() != self._worker:
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        # What the worker had is not freed here: that would close files of this process that have got the same numbers.
        gc.freeze()
        with contextlib.suppress(OSError):
            os.setsid()
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(PR_SET_NAME, NAME.encode(), 0, 0, 0)
        signal.set_wakeup_fd(-1)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        die_with_parent(self._worker)
        # Among them are the pipes by whose end the worker knows that a pool process has died, and the locks of its files.
        listener = self._listener.fileno()
        os.closerange(3, listener)
        os.closerange(listener + 1, DESCRIPTORS)
        Pooler(self._settings, self._listener).serve()
