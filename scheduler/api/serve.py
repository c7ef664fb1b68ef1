"""The web process: uvicorn, from the first account to the end of the last request."""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from scheduler.api import app, servers
from scheduler.process import hardening, log_format, role
from scheduler.process.role import ServiceManager
from scheduler.settings import Settings
from scheduler.store.accounts import accounts
from scheduler.store.db import database as store
from scheduler.store.db import migrate

log = logging.getLogger("paceline.web")

#: Connections beyond this number are refused.
MOST_CONNECTIONS = 1000
#: Seconds after which an idle connection is closed: more than the 60 of nginx and of cloud load balancers, because a request that
#: is sent on a connection which is closed at this moment fails.
IDLE_S = 75


class _Server(uvicorn.Server):
    """Notifies streams of a shutdown as soon as the signal arrives, and the service manager of each state."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event, service_manager: ServiceManager) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._service_manager = service_manager

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._service_manager.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping.set()
        super().handle_exit(sig, frame)


def run(settings: Settings, *, say: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, let open requests end, and return the exit code."""
    role.prepare(settings.web_database_url)
    hardening.forget()
    if settings.logs.format == log_format.JSON:
        log_format.to_stderr(log_format.JSON, "web")
        say = log.info
    _prepare_database(settings, say)
    with role.running("web", settings.run_folder) as running:
        manager = running.service_manager
        server = _Server(_watched(config(settings, app.create(settings, running.stop)), manager), running.stop, manager)
        say(f"Paceline listens on {settings.web.local_url}")
        server.run()
    # uvicorn logs why it could not listen.
    return 0 if server.started else 1


def config(settings: Settings, application: object) -> uvicorn.Config:
    """The configuration of uvicorn."""
    web = settings.web
    return uvicorn.Config(
        application,  # type: ignore[arg-type]
        host=web.address,
        port=web.port,
        ssl_certfile=web.tls_certificate,
        ssl_keyfile=web.tls_key,
        proxy_headers=bool(web.proxies),
        forwarded_allow_ips=web.proxies,
        server_header=False,
        access_log=False,
        log_level="warning",
        # Without a configuration of its own, uvicorn's records reach the root logger.
        log_config=None if settings.logs.format == log_format.JSON else uvicorn.config.LOGGING_CONFIG,
        lifespan="on",
        ws="none",
        http=Connection,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=web.drain_timeout,
    )


def _watched(configured: uvicorn.Config, service_manager: ServiceManager) -> uvicorn.Config:
    """Let the event loop that serves requests report to the service manager."""

    async def alive() -> None:
        service_manager.alive()

    if service_manager.interval_s:
        configured.callback_notify = alive
        configured.timeout_notify = max(1, int(service_manager.interval_s))
    return configured


def _prepare_database(settings: Settings, say: Callable[[str], None]) -> None:
    """Wait for the database, check its schema, and create the first account."""
    engine = servers.create_engine(settings)
    try:
        migrate.wait(engine, say)
        password = store.transact(engine, accounts.create_first)
    finally:
        engine.dispose()
    if password is not None:
        say(f"The first account is {accounts.FIRST} with the password {password} - it is not shown again.")


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
