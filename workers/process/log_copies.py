"""Copies the logs of tries to logs.url: while they run, and when they have ended.

A pool process notes each log that it closes in a file, which costs it microseconds. A thread of the worker process reads the file
and copies. The next worker on this machine copies the logs that a killed worker left there.
"""

import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from scheduler.process.health import VitalThread
from scheduler.settings import Settings, log_paths
from workers.process.logs import worker_log

#: The file with the logs that a worker has to copy, by its process ID; and the parts that it has moved away to copy them.
NAME = "logs-{pid}.notes"
OF_WORKER = re.compile(r"logs-(?P<pid>\d+)\.notes(\.\d+)?")
#: Copies at the same time.
COPIERS = 4
#: Seconds for which the end of the worker waits for the last copies.
LAST_S = 10.0


class Notes:
    """The file in which the pool processes of a worker note the logs that they have closed."""

    def __init__(self, settings: Settings, worker_pid: int) -> None:
        self._path = str(settings.run_folder / NAME.format(pid=worker_pid))

    def add(self, log: str) -> None:
        """Note a log. It is opened each time, because the worker moves it away."""
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, log_paths.FILE_MODE)
            os.write(file, f"{log}\n".encode())
            os.close(file)


class LogCopies(VitalThread):
    """The thread of the worker process. `running` returns the logs of the tries that run now."""

    def __init__(self, settings: Settings, running: Callable[[], Collection[str]]) -> None:
        super().__init__(name="log-copies", daemon=True)
        self._settings = settings
        self._running = running
        self._folder = settings.run_folder
        self._own = self._folder / NAME.format(pid=os.getpid())
        self._parts = 0
        #: By log of a running try: its size at the last copy.
        self._sizes: dict[str, int] = {}
        #: Logs of tries that have ended, and the files with the notes on them.
        self._pending: set[str] = set()
        self._noted: list[Path] = []
        self._failing = False
        self._ended = threading.Event()

    def end(self) -> None:
        """Copy the remaining logs, and end the thread."""
        self._ended.set()
        self.join(LAST_S)

    def work(self) -> None:
        with ThreadPoolExecutor(COPIERS, thread_name_prefix="log-copy") as pool:
            self._attempt(self._adopt)
            while not self._ended.wait(self._settings.logs.copy_interval):
                self._attempt(functools.partial(self.copy, pool))
            # Twice, because a pool process may be adding to the part that is read first.
            self._attempt(functools.partial(self.copy, pool))
            self._attempt(functools.partial(self.copy, pool))

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # such as a folder of the home that cannot be read at the moment
            worker_log.exception("the logs to copy could not be found; the next attempt follows")

    def copy(self, pool: ThreadPoolExecutor) -> None:
        """One round: logs that have grown, and logs that have ended."""
        former, self._noted = self._noted, []
        # Each part is read in the round that takes it and in the next one, when no pool process writes to it any more.
        for part in [*former, *self._take(self._own)]:
            self._pending |= self._logs_in(part)
        grown = self._grown()
        self._sizes |= dict.fromkeys(grown.keys() - self._sizes.keys(), -1)
        results = dict(zip([*self._pending, *grown], pool.map(self._copied, [*self._pending, *grown]), strict=True))
        self._pending = {path for path in self._pending if not results[path]}
        for path, size in grown.items():
            if results[path]:
                self._sizes[path] = size
        if self._pending:
            self._noted += [part for part in former if part.exists()]
            return
        for part in former:
            part.unlink(missing_ok=True)

    def _take(self, notes: Path) -> list[Path]:
        """Move a file with notes to a part of this worker; empty if there is none, or if another worker was faster."""
        part = self._own.with_name(f"{self._own.name}.{self._parts}")
        try:
            notes.rename(part)
        except FileNotFoundError:
            return []
        self._parts += 1
        self._noted.append(part)
        return [part]

    def _logs_in(self, part: Path) -> set[str]:
        """The logs in a file. User code could write anything to it, but only files of the logs folder are copied."""
        try:
            lines = part.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return set()
        folder = f"{self._settings.logs_folder}/"
        return {line for line in lines if line.startswith(folder) and "/../" not in line and line.endswith(".log")}

    def _grown(self) -> dict[str, int]:
        """The logs of running tries that have grown since their last copy, with their sizes."""
        running = set(self._running())
        # Also those of processes that were killed before they could note them.
        self._pending |= self._sizes.keys() - running
        self._sizes = {path: size for path, size in self._sizes.items() if path in running}
        grown = {}
        for path in running - self._pending:
            with contextlib.suppress(OSError):
                size = Path(path).lstat().st_size
                if size != self._sizes.get(path):
                    grown[path] = size
        return grown

    def _copied(self, path: str) -> bool:
        """Copy a log with its rendered templates. False if that has to be repeated."""
        try:
            log_paths.write(self._settings, Path(path))
            log_paths.write(self._settings, Path(log_paths.rendered_path(path)))
        except Exception as error:  # each file system has its own errors
            if not self._failing:
                worker_log.warning(
                    "Logs cannot be copied to %s (%s); they stay here until they can", self._settings.logs.url, error
                )
            self._failing = True
            return False
        self._failing = False
        return True

    def _adopt(self) -> None:
        """Take over the notes of workers of this machine that have ended."""
        for path in self._folder.glob("logs-*.notes*"):
            match = OF_WORKER.fullmatch(path.name)
            if match is not None and not psutil.pid_exists(int(match["pid"])):
                self._take(path)


def started(settings: Settings, running: Callable[[], Collection[str]]) -> LogCopies | None:
    """The thread, if logs are copied."""
    if settings.logs.url is None:
        return None
    thread = LogCopies(settings, running)
    thread.start()
    return thread
