"""An observer of events, on the database of a scenario."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from scheduler.settings import Settings
from scheduler.telemetry.follower import Follower

Observe = Callable[[Callable[[], None]], None]


@contextlib.contextmanager
def observed_by(make_observer: Callable[[Settings], Any], settings: Settings) -> Iterator[Observe]:
    """Calls functions, and passes the events of each to a new observer."""
    follower = Follower(settings, [])

    def observe(work: Callable[[], None]) -> None:
        observer = make_observer(settings)
        follower._observers = [observer]
        follower.read_once()
        work()
        while follower.read_once():
            pass
        observer.close()

    yield observe
    follower._leave()
