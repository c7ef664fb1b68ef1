"""HTTP connections that send no request are closed after a time, and the oldest of them when there are too many."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Seconds from the first byte that may arrive to the end of the headers.
HEADERS_S = 10.0
#: Connections without a complete request. A further one closes the oldest, so that idle clients cannot keep others out.
MOST_IDLE = 250


class Connection(HttpToolsProtocol):
    """One connection. It is idle until the headers of a request are complete, and again after the response."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        idle = self._waiting()
        self._wait()
        if len(idle) > MOST_IDLE:
            oldest = next(iter(idle))
            idle.pop(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._begin()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:  # the next request on a kept connection
            self._wait()

    def on_headers_complete(self) -> None:
        self._begin()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport is not None and not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._waiting()[self] = None

    def _waiting(self) -> dict["Connection", None]:
        """The idle connections of this process, the oldest first."""
        idle: dict[Connection, None] = self.server_state.__dict__.setdefault("idle", {})
        return idle

    def _wait(self) -> None:
        self._waiting().setdefault(self)
        self._timer = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _begin(self) -> None:
        self._waiting().pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
