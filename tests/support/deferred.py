"""A waiter in a thread of the test."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.settings import Settings
from scheduler.store.db import database
from workers.waiter.waiter import Waiter


@contextmanager
def running_waiter(settings: Settings, name: str = "waiter") -> Iterator[Waiter]:
    """A waiter with its own event loop, which shuts down cleanly with the block."""
    engine = database.create(settings)
    waiter = Waiter(engine, settings, name=name)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(waiter.run(stop),))
    thread.start()
    try:
        yield waiter
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
        engine.dispose()
