"""The limits that pools share, `parallelism` and the places of a queue, in concurrent passes that lock different pools.

A pass first announces how much it may take of each limit, in the key of an advisory lock that it holds until it commits. Then
it reads what other passes have announced, and only then counts what is free. It takes at most the difference.

So no limit is exceeded. Consider the last pass that announced, among all that take from a limit. Every other pass either committed
before this one read the announcements, and is counted; or it was still running, and this pass leaves everything to it that it may
take. No pass waits. A pass that leaves something to another one runs again soon.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from paceline.states import Waiting
from scheduler.deciding.select import FreeCapacity
from scheduler.store.queueing import capacity

#: core.parallelism in the key of its lock, which all schedulers must share.
ALL_INSTANCES = "parallelism"


class SharedLimits:
    """The announcements of one pass. Call `announce` before the count that the pass uses, and `within` after it."""

    def __init__(self) -> None:
        #: The number that all rounds of the pass may take together, by the name of the limit.
        self._announced: Counter[str] = Counter()
        #: The numbers that this round may take, and that all other passes may take.
        self._wanted: Counter[str] = Counter()
        self._others: Mapping[str, int] = {}

    def announce(self, connection: Connection, expected: Collection[Waiting]) -> None:
        """Announce that this round may take as many places as `expected` needs, which were free at the last count."""
        self._wanted = Counter(_of_queue(waiting.queue) for waiting in expected)
        if expected:
            self._wanted[ALL_INSTANCES] = len(expected)
            self._announced += self._wanted
            # The sum of all rounds: each amount is a lock of its own, and the largest of a pass counts.
            self._others = capacity.announce(connection, {name: self._announced[name] for name in self._wanted})

    def within(self, free: FreeCapacity, queues: Collection[str]) -> tuple[FreeCapacity, bool]:
        """The part of `free`, counted after `announce`, that this round may take; and whether it leaves some to other passes."""
        counts = {ALL_INSTANCES: free.parallelism} | {_of_queue(name): free.queues[name] for name in queues}
        usable = {name: min(self._wanted[name], count - self._others.get(name, 0)) for name, count in counts.items()}
        leaves = any(usable[name] < min(self._wanted[name], count) for name, count in counts.items())
        by_queue = defaultdict(int, {name: usable[_of_queue(name)] for name in queues})
        return replace(free, parallelism=usable[ALL_INSTANCES], queues=by_queue), leaves


def _of_queue(name: str) -> str:
    return f"queue {name}"
