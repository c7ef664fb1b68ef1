"""The event stream: one query of the database for all open pages of a web process, fanned out in memory."""

import asyncio
import contextlib
import functools
import json
import logging
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio.to_thread
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from paceline.exceptions import UnreachableError
from scheduler.store.accounts.accounts import Account
from scheduler.store.accounts.logins import accounts
from scheduler.store.db import database
from scheduler.store.read.changes import Changes, Watch

log = logging.getLogger("paceline.web")

#: Seconds between two polls, while a page is open.
INTERVAL_S = 0.4
#: Seconds for the first look.
READY_S = 5.0
#: Seconds after which an idle stream sends a comment, so that no proxy closes it.
KEEP_ALIVE_S = 15.0
#: Seconds after which a stream ends, and the page connects again.
LONGEST_S = 900.0
#: The most seconds between two checks of the logins of all streams; they are also checked before each message. A stream whose
#: login has ended, or has other rights now, ends.
LOGINS_S = 1.0
#: Streams of one process, and messages that a slow client may be behind.
MOST_STREAMS, MOST_BEHIND = 500, 50
#: Task instances in one message.
MOST_TASKS = 500


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a page: everything, a DAG or a run. Task instances are sent with a DAG only. `tags`: None means all DAGs."""

    dag_id: str | None = None
    dag_run_id: str | None = None
    tags: tuple[str, ...] | None = None

    def sees(self, run: dict[str, Any]) -> bool:
        return (
            self.dag_id in {None, run["dag_id"]}
            and self.dag_run_id in {None, run["dag_run_id"]}
            and (self.tags is None or not set(self.tags).isdisjoint(run["tags"]))
        )


class Session(NamedTuple):
    """The digest of the key with which a stream was opened, and its account then."""

    digest: bytes
    account: Account


@dataclass(eq=False, slots=True)
class _Page:
    """An open stream."""

    scope: Scope
    session: Session
    messages: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(MOST_BEHIND))
    is_behind: bool = False
    has_ended: bool = False

    def end(self) -> None:
        """Send nothing more. The message wakes its reader, which checks `has_ended` first."""
        self.has_ended = True
        with contextlib.suppress(asyncio.QueueFull):
            self.messages.put_nowait("")

    def put(self, message: str) -> None:
        if self.is_behind and self.messages.empty():
            self.is_behind = False
            self.messages.put_nowait(event("reset", {}))
        if not self.is_behind:
            try:
                self.messages.put_nowait(message)
            except asyncio.QueueFull:
                self.is_behind = True


class Stream:
    """The open pages of a web process. Nothing is read while there are none."""

    def __init__(self, engine: Engine, stopping: threading.Event) -> None:
        self._engine = engine
        self._stopping = stopping
        self._pages: set[_Page] = set()
        self._looking: asyncio.Task[None] | None = None
        #: Set after the first look, from which on no change is missed.
        self._sees = asyncio.Event()
        #: Polls since the start, for tests: they do not grow with the number of pages.
        self.looks = 0

    def refuse_too_many(self) -> None:
        """UnreachableError if this process has as many streams as it may have."""
        if len(self._pages) >= MOST_STREAMS:
            raise UnreachableError("This web process has too many open event streams: start another one, or close pages.")

    async def follow(self, scope: Scope, session: Session) -> AsyncIterator[str]:
        """The messages for a page, until its login ends, the process shuts down, or the stream is too old."""
        page = _Page(scope, session)
        self._pages.add(page)
        if self._looking is None or self._looking.done():
            self._sees.clear()
            self._looking = asyncio.create_task(self._look())
        ends_at = time.monotonic() + LONGEST_S
        try:
            # Data that the page reads after `ready` is not older than the first look. Without PostgreSQL, a `reset` follows.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sees.wait(), READY_S)
            yield "retry: 2000\n" + event("ready", {})
            sent_at = time.monotonic()
            while not (page.has_ended or self._stopping.is_set()) and time.monotonic() < ends_at:
                try:
                    message = await asyncio.wait_for(page.messages.get(), 1.0)
                    if page.has_ended:
                        break
                    yield message
                    sent_at = time.monotonic()
                except TimeoutError:
                    if page.is_behind:  # and no change followed those that it missed
                        page.is_behind = False
                        yield event("reset", {})
                    if time.monotonic() - sent_at >= KEEP_ALIVE_S:
                        sent_at = time.monotonic()
                        yield ": alive\n\n"
        finally:
            self._pages.discard(page)

    async def _look(self) -> None:
        watch, is_away, checked_at = Watch(), False, time.monotonic()
        while self._pages and not self._stopping.is_set():
            started = time.monotonic()
            try:
                self.looks += 1
                is_due = started - checked_at >= LOGINS_S
                opened = {page.session.digest for page in self._pages}
                # A page of a DAG that opens during this look gets `more` instead of task instances.
                of_dags = any(page.scope.dag_id is not None for page in self._pages)
                read = functools.partial(_read, with_instances=of_dags, digests=opened, is_due=is_due)
                changes, logins = await anyio.to_thread.run_sync(database.read, self._engine, read, watch)
                if logins is not None:
                    self._end_without(logins, opened)
                    checked_at = started
            except (DBAPIError, PoolTimeoutError, UnreachableError):
                if not is_away:
                    log.warning("The event stream cannot read the database")
                    self._broadcast(event("away", {"detail": "PostgreSQL does not answer."}))
                is_away = True
            except Exception:
                log.exception("The event stream failed")
                is_away = True
            else:
                if is_away:
                    self._broadcast(event("reset", {}))
                is_away = False
                self._sees.set()
                if changes is not None:
                    self._send(changes)
            await asyncio.sleep(max(INTERVAL_S - (time.monotonic() - started), INTERVAL_S / 2))

    def _end_without(self, logins: dict[bytes, Account], opened: set[bytes]) -> None:
        """End the streams, among those that were `opened` before the check, whose login has ended or has other rights."""
        for page in self._pages:
            if page.session.digest in opened and logins.get(page.session.digest) != page.session.account:
                page.end()

    def _broadcast(self, message: str) -> None:
        for page in self._pages:
            page.put(message)

    def _send(self, changes: Changes) -> None:
        """Each message is built once for all pages with the same scope."""
        messages: dict[Scope, str | None] = {}
        for page in self._pages:
            if page.has_ended:
                continue
            if page.scope not in messages:
                messages[page.scope] = _message(changes, page.scope)
            message = messages[page.scope]
            if message is not None:
                page.put(message)


def _read(
    connection: Connection, watch: Watch, *, with_instances: bool, digests: set[bytes], is_due: bool
) -> tuple[Changes | None, dict[bytes, Account] | None]:
    """Reads the changes, then the accounts of these logins, if there are changes or the check is due.

    In this order, no change reaches a login that ended before it became visible.
    """
    changes = watch.look(connection, with_instances=with_instances)
    return changes, accounts(connection, digests) if is_due or changes is not None else None


def event(name: str, data: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def _message(changes: Changes, scope: Scope) -> str | None:
    runs = {number: run for number, run in changes.runs.items() if scope.sees(run)}
    if not runs and not changes.dags:
        return None
    tasks: list[dict[str, Any]] = []
    if scope.dag_id is not None:
        tasks = [
            {"dag_id": run["dag_id"], "dag_run_id": run["dag_run_id"], **task}
            for number, run in runs.items()
            for task in changes.instances.get(number, ())
        ]
    is_long = scope.dag_id is not None and (changes.more or len(tasks) > MOST_TASKS)
    shown = [{name: run[name] for name in ("dag_id", "dag_run_id", "state")} for run in runs.values()]
    data = {"at": changes.at.isoformat(), "runs": shown[:MOST_TASKS], "tasks": [] if is_long else tasks,
            "more": is_long or len(shown) > MOST_TASKS, "dags": changes.dags}  # fmt: skip
    return event("changes", data)
