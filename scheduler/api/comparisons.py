"""Comparisons of reproductions, in a thread of the web process: no request waits until tables are read."""

import logging
import threading
import time
from typing import NamedTuple

from sqlalchemy import Engine

from paceline.exceptions import PacelineError
from scheduler.process import extras
from scheduler.settings import Settings
from scheduler.store.tables.scratch import Reproduced

log = logging.getLogger("paceline.web")

#: Seconds after which a comparison that failed may be tried again.
RETRY_S = 60.0


class Failed(NamedTuple):
    """A comparison that failed: when, on the monotonic clock, and why."""

    at: float
    why: str


class Comparisons:
    """Compares one reproduction after the other. Each result is stored, so a process that ends meanwhile loses nothing but work.

    One that another process is comparing is left to it.
    """

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings, self._engine = settings, engine
        self._lock = threading.Lock()
        #: Those that wait, and the first one, which the thread compares.
        self._open: dict[int, Reproduced] = {}
        self._failed: dict[int, Failed] = {}
        self._thread: threading.Thread | None = None

    def ask(self, one: Reproduced) -> str | None:
        """Compare a reproduction that has ended, beside this request. Returns why it failed, if that was a moment ago."""
        now = time.monotonic()
        with self._lock:
            self._failed = {key: failed for key, failed in self._failed.items() if now - failed.at < RETRY_S}
            if one.id in self._failed:
                return self._failed[one.id].why
            self._open.setdefault(one.id, one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._compare, name="comparisons", daemon=True)
                self._thread.start()
        return None

    def _compare(self) -> None:
        while (one := self._next()) is not None:
            why = None
            try:
                from scheduler.catalog import reproduction  # not before: it loads pyiceberg

                reproduction.judge(self._settings, self._engine, one.id)
            except Exception as error:
                log.exception("The reproduction %s of DAG %s cannot be compared", one.run_id, one.dag_id)
                why = _reason(error)
            with self._lock:
                del self._open[one.id]
                if why is not None:
                    self._failed[one.id] = Failed(time.monotonic(), why)

    def _next(self) -> Reproduced | None:
        with self._lock:
            one = next(iter(self._open.values()), None)
            if one is None:
                self._thread = None  # under the lock, so that the next to ask starts another one
            return one


def _reason(error: Exception) -> str:
    known = extras.as_paceline_error(error, "The comparison of tables") if isinstance(error, ImportError) else error
    if isinstance(known, PacelineError):
        return str(known)
    return "The tables cannot be read: the log of the web process has the reason."
