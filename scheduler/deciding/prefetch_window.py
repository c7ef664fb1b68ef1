"""How many messages a queue may hold beyond the places of its workers: pure, from what they took since the last look."""

from collections.abc import Mapping

#: Seconds of work that may wait in a queue, so that few passes keep quick tasks coming. An urgent one waits no longer behind it.
AHEAD_S = 0.2
#: Times the setting; a list in Redis stays short enough to be read.
MOST = 16


class PrefetchWindow:
    """By queue: what its workers take in AHEAD_S at the pace at which they took the last of it, at least `least`.

    It at most doubles from one look to the next. Tasks that take long leave it at `least`, which keeps the order of what waits
    in the database's hands.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._of: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._at_s = 0.0

    def of(self, queue: str) -> int:
        """How many messages this queue may hold now, beyond its places."""
        return self._of.get(queue, self._least)

    def look(self, held: Mapping[str, int], at_s: float) -> None:
        """Compare what each queue and its workers hold at this moment with what they were left with."""
        passed_s = at_s - self._at_s
        if passed_s <= 0:
            return
        most = MOST * self._least
        for queue, left in self._left.items():
            pace = max(0, left - held.get(queue, 0)) / passed_s
            self._of[queue] = int(max(self._least, min(pace * AHEAD_S, 2 * self.of(queue), most)))

    def leave(self, held: Mapping[str, int], at_s: float) -> None:
        """Note what each queue and its workers hold after this pass."""
        self._left, self._at_s = dict(held), at_s
