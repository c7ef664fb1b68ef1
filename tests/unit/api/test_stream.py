"""Event streams of clients that read slowly."""

import asyncio
import threading

import pytest

from scheduler.api.stream import MOST_BEHIND, Session, Stream, Wanted, event
from scheduler.settings import Settings
from scheduler.store.accounts.accounts import Account
from scheduler.store.db import database


def test_a_client_that_missed_changes_reads_again_even_if_no_change_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(database.create(Settings(), pool_size=1), threading.Event())

    async def look() -> None:
        stream._sees.set()

    async def listen() -> list[str]:
        followed = stream.follow(Wanted(), Session(b"", Account(1, "ada", "viewer")))
        await anext(followed)
        for number in range(MOST_BEHIND + 1):
            stream._tell(event("changes", {"number": number}))
        found = [await asyncio.wait_for(anext(followed), 20) for _ in range(MOST_BEHIND + 1)]
        await followed.aclose()
        return found

    monkeypatch.setattr(stream, "_look", look)
    messages = asyncio.run(listen())

    assert messages[-2:] == [event("changes", {"number": MOST_BEHIND - 1}), event("reset", {})]
