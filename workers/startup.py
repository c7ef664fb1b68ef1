"""What a worker needs before it starts: a database of the right schema, and a broker. It waits for both."""

import time

import redis
from sqlalchemy import Engine

from scheduler.doorbell import client
from scheduler.exceptions import CredentialsError
from scheduler.settings import Settings
from scheduler.store import database, migrate
from workers.logs import worker_log

PAUSE_S = 1.0
#: What Redis says when it is there and refuses who we are; some of these come as plain ResponseError.
REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM", "invalid password", "Authentication required", "AUTH")


def ready(settings: Settings) -> Engine:
    """Wait until database and broker answer. CredentialsError and SchemaError end the wait."""
    engine = database.create(settings, pool_size=2, application="paceline worker")
    database.wait(engine, worker_log.warning)
    migrate.check(engine)
    _wait_for_broker(settings)
    return engine


def _wait_for_broker(settings: Settings) -> None:
    broker = client(settings)
    said = False
    while True:
        try:
            broker.ping()
            broker.close()
            return
        except redis.RedisError as error:
            text = str(error)
            if isinstance(error, redis.AuthenticationError) or any(phrase in text for phrase in REFUSED):
                raise CredentialsError(f"Redis refuses the connection: {text}. Correct PACELINE_BROKER_URL.") from None
            if not said:
                worker_log.warning("Redis does not answer: %s. Start it, or correct PACELINE_BROKER_URL. Waiting for it.", text)
                said = True
            time.sleep(PAUSE_S)
