"""HTTP connections without a complete request end after a time, after too many bytes, and as the oldest of too many."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Seconds from the first byte that may arrive to the end of the headers.
HEADERS_S = 10.0
#: Connections without a complete request. A further one closes the oldest, so that idle clients cannot keep others out.
MOST_IDLE = 250
#: Bytes of an address and headers that are still incomplete. What has arrived with them in one read counts, too.
MOST_HEADER_BYTES = 256 << 10


class Connection(HttpToolsProtocol):
    """One connection. It is idle until the headers of a request are complete, and again after the response."""

    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        idle = self._waiting()
        self._wait()
        if len(idle) > MOST_IDLE:
            oldest = next(iter(idle))
            idle.pop(oldest)
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None and self.transport is not None and not self.transport.is_closing():
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES:
                self.send_400_response(f"The headers of the request have more than {MOST_HEADER_BYTES:,} bytes.")

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
        self._header_bytes = 0
        self._timer = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _begin(self) -> None:
        self._waiting().pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
