"""The start of a worker or waiter: waits for a database with the right schema, and for the broker."""

import functools

from sqlalchemy import Engine

from paceline.exceptions import CredentialsError
from scheduler.messaging import brokers
from scheduler.process import retries
from scheduler.settings import Settings
from scheduler.store.db import database, migrate
from workers.process.logs import worker_log


def ready(settings: Settings, *, application: str, keep: int = 2) -> Engine:
    """Wait until the database and the broker answer. CredentialsError and SchemaError end the wait.

    The engine keeps `keep` connections open. PostgreSQL lists them under the name `application`.
    """
    engine = database.create(settings, pool_size=keep, application=application)
    try:
        migrate.wait(engine, worker_log.warning)
    except CredentialsError as error:
        own = " Workers and waiters have PACELINE_WORKER_DATABASE_URL." if settings.worker.database_url else ""
        raise CredentialsError(f"{error}{own}") from None
    retries.await_server(functools.partial(brokers.check, settings), worker_log.warning)
    return engine
