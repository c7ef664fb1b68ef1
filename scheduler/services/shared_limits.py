"""Limits that span pools, `parallelism` and the places of a queue: how passes that hold different pools stay within them.

A pass first announces how many it may take of each limit, in the key of an advisory lock that it keeps until it commits. Then it
reads what the other passes have announced, and only then counts what is free. It takes what is free less what is announced.

So no limit is exceeded. Of all passes that take from a limit consider the one that announced last. Every other pass either
committed before this one read the announcements, and its take is counted, or was still under way, and all that it may take is
left to it. Nobody waits: a pass that has to leave something to another looks again soon.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from scheduler.deciding.select import Room
from scheduler.states import Waiting
from scheduler.store.queueing import capacity

PARALLELISM = "parallelism"


class SharedLimits:
    """What one pass has announced. Call `announce` before the count that the pass goes by, and `within` after it."""

    def __init__(self) -> None:
        #: All rounds of the pass together, by the name of the limit. It never takes more than this.
        self._announced: Counter[str] = Counter()
        #: What this round may take, and what all other passes may.
        self._wanted: Counter[str] = Counter()
        self._others: Mapping[str, int] = {}

    def announce(self, connection: Connection, expected: Collection[Waiting]) -> None:
        """Announce that this round may take as many as there are in `expected`, by what was free until now."""
        self._wanted = Counter(_of_queue(one.queue) for one in expected)
        if expected:
            self._wanted[PARALLELISM] = len(expected)
            self._announced += self._wanted
            # The sum of all rounds: each amount is a lock of its own, and of one pass the largest counts.
            self._others = capacity.announce(connection, {name: self._announced[name] for name in self._wanted})

    def within(self, free: Room, queues: Collection[str]) -> tuple[Room, bool]:
        """What this round may take of what is `free`, counted after `announce`; whether it leaves some to other passes."""
        counts = {PARALLELISM: free.parallelism} | {_of_queue(name): free.queues[name] for name in queues}
        usable = {name: min(self._wanted[name], count - self._others.get(name, 0)) for name, count in counts.items()}
        leaves = any(usable[name] < min(self._wanted[name], count) for name, count in counts.items())
        by_queue = defaultdict(int, {name: usable[_of_queue(name)] for name in queues})
        return replace(free, parallelism=usable[PARALLELISM], queues=by_queue), leaves


def _of_queue(name: str) -> str:
    return f"queue {name}"
