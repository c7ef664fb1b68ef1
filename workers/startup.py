"""What a worker or waiter needs before it starts: a database of the right schema, and a broker. It waits for both."""

import os
import time

from sqlalchemy import Engine

from scheduler import doorbell
from scheduler.exceptions import CredentialsError, UnreachableError
from scheduler.settings import Settings
from scheduler.store import database, migrate
from workers.logs import worker_log

PAUSE_S = 1.0
#: User code must not find the way into the database by accident.
SECRETS = ("PACELINE_DATABASE_URL", "PACELINE_BROKER_URL", "PACELINE_CORE_FERNET_KEY")


def hide_secrets() -> None:
    """Take the secrets among the settings, once they are read, out of the environment."""
    for secret in SECRETS:
        os.environ.pop(secret, None)


def ready(settings: Settings) -> Engine:
    """Wait until database and broker answer. CredentialsError and SchemaError end the wait."""
    engine = database.create(settings, pool_size=2, application="paceline worker")
    database.wait(engine, worker_log.warning)
    migrate.check(engine)
    _wait_for_broker(settings)
    return engine


def _wait_for_broker(settings: Settings) -> None:
    said = False
    while True:
        try:
            return doorbell.check(settings)
        except CredentialsError:
            raise
        except UnreachableError as error:
            if not said:
                worker_log.warning("%s Waiting for it.", error)
                said = True
            time.sleep(PAUSE_S)
