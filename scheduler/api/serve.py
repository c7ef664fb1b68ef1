"""The web process: uvicorn, from the first account to the end of the last request."""

import logging
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from scheduler.api import app, database
from scheduler.api.protocol import Connection
from scheduler.process import hardening, log_format, role
from scheduler.process.service_manager import ServiceManager
from scheduler.settings import Settings
from scheduler.store.accounts import accounts
from scheduler.store.db import database as store
from scheduler.store.db import migrate

log = logging.getLogger("paceline.web")

#: Connections beyond this number are refused.
MOST_CONNECTIONS = 1000


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
    engine = database.create(settings)
    try:
        migrate.wait(engine, say)
        password = store.transact(engine, accounts.create_first)
    finally:
        engine.dispose()
    if password is not None:
        say(f"The first account is {accounts.FIRST} with the password {password} - it is not shown again.")
