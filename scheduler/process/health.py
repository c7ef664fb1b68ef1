"""The health of a process: its parts record when they last ran, and the health server reports on them at any time.

INVARIANT: nothing here waits for a database, a broker or a thread of the process. A report must be possible while they hang.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Seconds for which a database or broker may be unreachable: a restart of it takes less.
AWAY_S = 10.0
#: The parts that need no server. If one of them hangs, only a restart of the process helps.
OWN = frozenset({"loop", "event_loop", "task_stopper"})

#: Returns the fault of a part in one sentence, or None. The argument is the time on the monotonic clock.
Complaint = Callable[[float], str | None]


@dataclass(slots=True)
class StepHealth:
    """A recurring step, such as an iteration of a thread. It is unhealthy if it has not run for `limit_s` seconds."""

    what: str
    limit_s: float
    at: float = field(default_factory=time.monotonic)

    def ran(self) -> None:
        """Record that the step has just run."""
        self.at = time.monotonic()

    def __call__(self, now: float) -> str | None:
        silent_s = now - self.at
        return f"{self.what} for {silent_s:.0f} s." if silent_s > self.limit_s else None


@dataclass(slots=True)
class ServerHealth:
    """A server that this process uses. It is unhealthy if all requests have failed for `limit_s` seconds."""

    limit_s: float = AWAY_S
    since: float | None = None
    why: str = ""

    def answered(self) -> bool:
        """Record that a request succeeded. Returns whether the one before it failed."""
        was_away, self.since = self.since is not None, None
        return was_away

    def failed(self, why: str) -> bool:
        """Record that a request failed. Returns whether the one before it succeeded."""
        self.why = why
        is_first = self.since is None
        if is_first:
            self.since = time.monotonic()
        return is_first

    def __call__(self, now: float) -> str | None:
        since = self.since
        return self.why if since is not None and now - since > self.limit_s else None


@dataclass(slots=True)
class Health:
    """The parts of a process. A failing `vital` part makes it unhealthy. A failing `other` part is only degraded."""

    role: str
    #: Returns the current ID of the process in the registry.
    process: Callable[[], str]
    vital: Mapping[str, Complaint]
    other: Mapping[str, Complaint] = field(default_factory=dict)

    def hangs(self) -> bool:
        """Whether a part hangs that needs no server, so that a restart helps."""
        now = time.monotonic()
        return any(complain(now) is not None for name, complain in self.vital.items() if name in OWN)

    def report(self) -> dict[str, Any]:
        """Return the response of `GET /health`."""
        now = time.monotonic()
        parts = {name: _part(complain(now), "unhealthy") for name, complain in self.vital.items()}
        healthy = all(part["status"] == "healthy" for part in parts.values())
        parts |= {name: _part(complain(now), "degraded") for name, complain in self.other.items()}
        return {"status": "healthy" if healthy else "unhealthy", "role": self.role, "process": self.process(), "parts": parts}


def _part(complaint: str | None, status: str) -> dict[str, str]:
    return {"status": "healthy"} if complaint is None else {"status": status, "message": complaint}


log = logging.getLogger("paceline")


class VitalThread(threading.Thread):
    """A daemon thread for the lifetime of its process. A subclass defines `work`; without one, `target` is called.

    After an error that `work` does not handle, the process exits with code 1, so that its service manager starts it again and
    others take over. A process that has lost a duty would go on looking healthy.
    """

    def run(self) -> None:
        try:
            self.work()
        except BaseException:
            log.critical("The thread %s ended with an error, so this process ends.", self.name, exc_info=True)
            logging.shutdown()
            os._exit(1)

    def work(self) -> None:
        super().run()
