"""How a process knows whether it is well: its parts say when they last did their duty, and somebody else may ask at any time.

Nothing here waits for a database, a broker or a thread of the process: what hangs is what is to be found out.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: How long a database or broker may be away before it is more than a restart of theirs.
AWAY_S = 10.0

#: What is wrong with a part, in one sentence; None if nothing is. The argument is the time on the monotonic clock.
Complaint = Callable[[float], str | None]


@dataclass(slots=True)
class Pulse:
    """Something that happens again and again: wrong once it has not for `limit_s`."""

    what: str
    limit_s: float
    at: float = field(default_factory=time.monotonic)

    def beat(self) -> None:
        self.at = time.monotonic()

    def __call__(self, now: float) -> str | None:
        silent_s = now - self.at
        return f"{self.what} for {silent_s:.0f} s." if silent_s > self.limit_s else None


@dataclass(slots=True)
class Contact:
    """A server this process talks to: wrong once it has not answered for `limit_s` although it was asked."""

    limit_s: float = AWAY_S
    since: float | None = None
    why: str = ""

    def answered(self) -> None:
        self.since = None

    def failed(self, why: str) -> None:
        self.why = why
        self.since = time.monotonic() if self.since is None else self.since

    def __call__(self, now: float) -> str | None:
        since = self.since
        return self.why if since is not None and now - since > self.limit_s else None


@dataclass(slots=True)
class Health:
    """The parts of one process. `vital` ones make it unhealthy, `other` ones only degraded: it does its duty without them."""

    role: str
    #: Under which id of the registry it works now.
    process: Callable[[], str]
    vital: Mapping[str, Complaint]
    other: Mapping[str, Complaint] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """What `GET /health` answers."""
        now = time.monotonic()
        parts = {name: _part(complain(now), "unhealthy") for name, complain in self.vital.items()}
        healthy = all(part["status"] == "healthy" for part in parts.values())
        parts |= {name: _part(complain(now), "degraded") for name, complain in self.other.items()}
        return {"status": "healthy" if healthy else "unhealthy", "role": self.role, "process": self.process(), "parts": parts}


def _part(complaint: str | None, status: str) -> dict[str, str]:
    return {"status": "healthy"} if complaint is None else {"status": status, "message": complaint}
