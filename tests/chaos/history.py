"""The history of the harness: the runs that it requested, its faults, and its actions as a user, each with its time.

The checker excuses only causes in this history, never those that the product stores about itself.
"""

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Still going on.
OPEN = float("inf")


@dataclass
class Harm:
    """A fault that may cost a worker's tries: the process (its name in the stack; None: every worker), one child of it or all."""

    what: str
    process: str | None
    start: float
    end: float = OPEN
    child: int | None = None


@dataclass
class Outage:
    """PostgreSQL was away, read-only or slow: tasks that ended meanwhile are reported afterwards."""

    start: float
    end: float = OPEN


@dataclass(frozen=True, kw_only=True)
class Action:
    """An action of a user; `tasks` are all that it may change."""

    kind: str
    dag_id: str
    run_id: str
    tasks: frozenset[str]
    start: float
    end: float


@dataclass
class History:
    """Thread-safe; times by time.time()."""

    #: (DAG id, run id): whether it is sure that the request arrived. One whose answer was lost may be stored or not.
    runs: dict[tuple[str, str], bool] = field(default_factory=dict)
    harms: list[Harm] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    #: Pools that were made smaller, and when (time.monotonic()): task instances in their slots are left to end.
    shrunk: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def requested(self, dag_id: str, run_id: str, *, sure: bool) -> None:
        with self._lock:
            self.runs[dag_id, run_id] = sure or self.runs.get((dag_id, run_id), False)

    def harmed(self, what: str, process: str | None, child: int | None = None) -> Harm:
        """Note that it begins; the caller sets `end`."""
        harm = Harm(what, process, time.time(), child=child)
        with self._lock:
            self.harms.append(harm)
        return harm

    @contextmanager
    def harm(self, what: str, process: str | None, child: int | None = None) -> Iterator[Harm]:
        """As long as the block."""
        noted = self.harmed(what, process, child)
        try:
            yield noted
        finally:
            noted.end = time.time()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """As long as the block."""
        noted = Outage(time.time())
        with self._lock:
            self.outages.append(noted)
        try:
            yield
        finally:
            noted.end = time.time()

    @contextmanager
    def action(self, kind: str, dag_id: str, run_id: str, tasks: Collection[str]) -> Iterator[None]:
        """A request of a person's; it counts even if its answer is lost."""
        start = time.time()
        try:
            yield
        finally:
            with self._lock:
                action = Action(kind=kind, dag_id=dag_id, run_id=run_id, tasks=frozenset(tasks), start=start, end=time.time())
                self.actions.append(action)
