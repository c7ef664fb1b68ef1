"""Limits that span pools, `parallelism` and the places of a queue: how passes that hold different pools stay within them.

Each pass takes at most `most` task instances, and all passes at one time hold different pools, so there are never more of them than
pools. While `most` is free for every pool there is, no pass can be one too many: the last of them to count saw what is
committed, and each of the others adds `most` at the most. Such passes share the limit. Nearer to it a pass needs it alone.
Nobody waits for a limit that another pass holds; the caller looks again soon.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from scheduler.store import room

PARALLELISM = "parallelism"


def of_queue(name: str) -> str:
    """What the limit of a queue is called."""
    return f"queue {name}"


class SharedLimits:
    """What one pass holds. Ask `hold` before the count that the pass goes by, and `may_use` after it."""

    def __init__(self, *, pools: int, most: int) -> None:
        self._pools = pools
        self._most = most
        self._shared: set[str] = set()
        self._alone: set[str] = set()

    def hold(self, connection: Connection, free: Mapping[str, int], *, taken: int) -> None:
        """Take these limits as far as nobody is in the way; by their name what was `free`, and how much this pass has taken."""
        near = {name for name, count in free.items() if self._is_near(count, taken)} - self._alone
        far = free.keys() - near - self._alone - self._shared
        if near or far:
            alone, shared = room.hold_limits(connection, near, far)
            self._alone |= alone
            self._shared |= shared

    def may_use(self, names: Iterable[str]) -> bool:
        """Whether this pass holds all of these in any way."""
        return self._alone.union(self._shared).issuperset(names)

    def held_by_others(self, free: Mapping[str, int], *, taken: int) -> set[str]:
        """Of the limits held, counted again: those that this pass may not take from, since others may be about to."""
        return {
            name
            for name, count in free.items()
            if name not in self._alone and (name not in self._shared or self._is_near(count, taken))
        }

    def _is_near(self, free: int, taken: int) -> bool:
        return free < self._pools * self._most - taken
