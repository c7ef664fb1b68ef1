"""Computes prefetch windows: how many messages a queue may hold beyond the free slots of its workers. Pure."""

from collections.abc import Mapping

#: Seconds of work that may wait in a queue, so that few iterations can supply short tasks. An urgent task waits at most this long.
AHEAD_S = 0.2
#: The largest window, as a multiple of the setting, so that the lists in Redis stay short enough to be read.
MOST = 16


class PrefetchWindow:
    """The prefetch window of each queue: the messages that its workers take in AHEAD_S at their last pace, at least `least`.

    It at most doubles from one look to the next. For long tasks it stays at `least`, so that the database decides the order of
    waiting tasks as late as possible.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._of: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._at_s = 0.0

    def of(self, queue: str) -> int:
        """Return the current window of a queue, in messages."""
        return self._of.get(queue, self._least)

    def look(self, held: Mapping[str, int], at_s: float) -> None:
        """Update the windows from the messages that each queue and its workers hold now, and held after the last iteration."""
        passed_s = at_s - self._at_s
        if passed_s <= 0:
            return
        most = MOST * self._least
        for queue, left in self._left.items():
            pace = max(0, left - held.get(queue, 0)) / passed_s
            self._of[queue] = int(max(self._least, min(pace * AHEAD_S, 2 * self.of(queue), most)))

    def leave(self, held: Mapping[str, int], at_s: float) -> None:
        """Record the messages that each queue and its workers hold after this iteration."""
        self._left, self._at_s = dict(held), at_s
