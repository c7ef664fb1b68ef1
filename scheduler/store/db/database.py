"""Connections to PostgreSQL: the engine of a process, and transactions that are done again when that is right."""

import functools
import getpass
import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg2
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError
from tenacity import stop_after_attempt, stop_after_delay

from scheduler.exceptions import START_EMBEDDED, CredentialsError, PacelineError, ReadOnlyError, UnreachableError
from scheduler.process import fault_points, retries
from scheduler.settings import Settings
from scheduler.store.db import odd_values, sqlstates

P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = 5
#: Seconds between two attempts of a transaction while the server takes no writes.
PAUSE_S = 0.2
#: What every connection asks of the server: no lock is waited for, and no transaction left open, for long. With the limit of
#: database.statement_timeout (`options`) nothing that a process asks holds what others need for longer. A process that is
#: stopped inside a transaction holds its pools and runs until the server ends its session; then the others go on.
OPTIONS = "-c timezone=UTC -c lock_timeout=30s -c idle_in_transaction_session_timeout=10s"
#: Added by schedulers. Each of their statements has its index, but a table that was analyzed when it was small lets a scan of it
#: look as cheap: 256 decisions about a run of 10,000 then read it 256 times. And none is worth compiling.
BY_INDEX = "-c enable_seqscan=off -c jit=off"
ACTOR, PATIENCE = "paceline_actor", "paceline_patience"
#: Standbys, and servers that were demoted, are passed over where a URL names several; one alone is waited for.
WRITABLE = "read-write"
UNSENDABLE = "A text with a NUL character, or with half of a surrogate pair, cannot be stored or looked up: leave that out."
#: What libpq says when the server is there and refuses who we are.
REFUSED = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
#: What it says when no server of the URL takes writes.
STANDBY = ("session is read-only", "server is in hot standby mode", "the database system is not accepting connections")
#: What it says when the server, or its certificate, is not what sslmode asks for. Waiting would not mend that.
UNTRUSTED = (
    "certificate verify failed", "does not match host name", "does not support SSL", "root certificate file", "weak sslmode",
    "could not read root certificate",
)  # fmt: skip

#: The fault points of a function's transaction: their step, and whether a result reaches them.
_COMMIT_POINTS: dict[Callable[..., Any], tuple[str, Callable[[Any], object]]] = {}


def create(
    settings: Settings,
    *,
    pool_size: int | None = None,
    application: str = "paceline",
    actor: str | None = None,
    by_index: bool = False,
    patience_s: float = 0.0,
) -> Engine:
    """The engine of one process. It connects lazily; `check` connects now. `actor` as in `act_as`, `by_index` see BY_INDEX.

    `patience_s` is how long a transaction is done again while the server takes no writes; the loops of processes come again anyway.
    """
    url = settings.database_url
    if not url.startswith(("postgresql://", "postgres://")):
        raise UnreachableError("database.url must start with postgresql://; Paceline keeps its state in PostgreSQL only.")
    made = create_engine(
        "postgresql+psycopg2://",
        creator=lambda: odd_values.accept(connect(settings, application, BY_INDEX if by_index else "")),
        pool_size=pool_size or settings.database.pool_size,
        pool_pre_ping=True,
    )
    act_as(made, actor or f"cli:{user()}")
    made.update_execution_options(**{PATIENCE: patience_s})
    event.listen(made, "checkout", functools.partial(_tell_actor, made))
    event.listen(made, "handle_error", _classify)
    return made


def connect(
    settings: Settings, application: str, more_options: str = "", *, connect_timeout_s: int | None = None
) -> psycopg2.extensions.connection:
    """A connection of its own to the server that takes writes, with the limits that every connection asks for."""
    dsn = settings.database_url.replace("postgres://", "postgresql://", 1)
    named = psycopg2.extensions.parse_dsn(dsn)
    limits = socket_options(settings)
    if connect_timeout_s is not None:
        limits["connect_timeout"] = connect_timeout_s
    made: psycopg2.extensions.connection = psycopg2.connect(
        dsn,
        application_name=application,
        options=f"{options(settings)} {more_options}",
        target_session_attrs=named.get("target_session_attrs", WRITABLE),
        **limits,
    )
    return made


def _classify(context: ExceptionContext) -> None:
    """Whatever passes is an OperationalError, for which every loop comes again. A pool of connections to a server that takes no
    writes is of no use: all of them are opened anew.
    """
    error = context.original_exception
    if sqlstates.is_read_only(error):
        context.is_disconnect = True
    if isinstance(error, psycopg2.Error) and sqlstates.is_passing(error):
        known = sqlstates.lost(error) or error
        raise OperationalError(context.statement, context.parameters, known, connection_invalidated=context.is_disconnect)


def act_as(engine: Engine, actor: str) -> None:
    """From now on `actor` stands in the events of what this engine changes: the id of a process, or cli:<user>."""
    engine.update_execution_options(**{ACTOR: actor})


def _tell_actor(engine: Engine, connection: Any, record: Any, _: object) -> None:
    """One round trip for each new connection, and when the process has got another id."""
    actor = engine.get_execution_options()[ACTOR]
    if record.info.get(ACTOR) == actor:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("select set_config('paceline.actor', %s, false)", (actor,))
        connection.commit()
    except psycopg2.Error as error:
        raise DisconnectionError(str(error)) from error
    record.info[ACTOR] = actor


def user() -> str:
    """Who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user that has no name
        return "unknown"


def options(settings: Settings) -> str:
    """What every connection asks of the server, see OPTIONS; and whether changes of state are kept as events."""
    timeout_ms = int(settings.database.statement_timeout * 1000)
    return f"{OPTIONS} -c statement_timeout={timeout_ms}{'' if settings.core.record_events else ' -c paceline.events=off'}"


def patiently(connection: Connection, *, seconds: float = 0) -> None:
    """Let the statements of this transaction take longer than others; 0 is no limit."""
    connection.exec_driver_sql("select set_config('statement_timeout', %s, true)", (str(int(seconds * 1000)),))


def socket_options(settings: Settings) -> dict[str, Any]:
    """How long connecting may take, and how soon a peer that vanished without a word is noticed (half a minute)."""
    return {
        "connect_timeout": settings.database.connect_timeout,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
    }


def check(engine: Engine) -> None:
    """Connect; UnreachableError or CredentialsError say what is wrong. For the engine's patience a failover is waited for."""
    stop = stop_after_delay(_patience_s(engine))
    retries.repeated(lambda error: isinstance(error, ReadOnlyError), pause_s=PAUSE_S, stop=stop)(_connect, engine)


def _connect(engine: Engine) -> None:
    try:
        with engine.connect():
            pass
    except OperationalError as error:
        raise translate(error) from None


def _patience_s(engine: Engine) -> float:
    return float(engine.get_execution_options().get(PATIENCE, 0.0))


def is_of_statement(error: DBAPIError) -> bool:
    """Whether the server is there and could not do this statement; another one may succeed."""
    return sqlstates.is_of_statement(error.orig)


def translate(error: DBAPIError) -> PacelineError:
    """What a failed connection means to a person; the URL's password is never part of it."""
    text = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    if getattr(error.orig, "pgcode", None) in sqlstates.TOO_SLOW:
        return UnreachableError(f"PostgreSQL gave up a statement: {text}. Try again when it has less to do.")
    if _is_read_only(error):
        return ReadOnlyError(
            f"PostgreSQL takes no writes now: {text}. Promote a standby, or name all servers in PACELINE_DATABASE_URL "
            "(docs/how-to/failover.md)."
        )
    refused = _refused(text, getattr(error.orig, "pgcode", None))
    start = START_EMBEDDED.format("DATABASE") if "socket" in text else "Start it, or correct PACELINE_DATABASE_URL."
    return refused or UnreachableError(f"PostgreSQL does not answer: {text}. {start}")


def _refused(text: str, code: str | None) -> CredentialsError | None:
    """What a server says that is there and does not let us in, or not do that; None if it says nothing of the kind."""
    if code == sqlstates.NO_RIGHT:
        return CredentialsError(
            f"The database role may not do that: {text}. `paceline db migrate`, run as the owner of the tables, grants the roles of"
            " PACELINE_DATABASE_URL and PACELINE_WORKER_DATABASE_URL what they need."
        )
    if any(phrase in text for phrase in UNTRUSTED):
        return CredentialsError(
            f"The connection to PostgreSQL is not secure: {text}. Correct sslmode and sslrootcert in PACELINE_DATABASE_URL."
        )
    if 'role "' in text and text.endswith("does not exist"):
        return CredentialsError(
            f"PostgreSQL refuses the connection: {text}. Correct PACELINE_DATABASE_URL, or let `paceline db migrate` make the role."
        )
    if any(phrase in text for phrase in REFUSED):
        return CredentialsError(f"PostgreSQL refuses the connection: {text}. Correct PACELINE_DATABASE_URL.")
    return None


def _is_read_only(error: DBAPIError) -> bool:
    return sqlstates.is_read_only(error.orig) or any(phrase in str(error.orig) for phrase in STANDBY)


def wait(engine: Engine, say: Callable[[str], None], *, timeout_s: float = math.inf, pause_s: float = 1.0) -> None:
    """Wait until the database answers, saying so once; wrong credentials end the wait at once."""
    retries.await_server(functools.partial(check, engine), say, within_s=timeout_s, pause_s=pause_s)


def transact(engine: Engine, work: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return `work(connection, ...)`, run in a transaction. Retry it after a lost race, and for the engine's patience while the
    server accepts no writes.

    Only errors with which the server states that it stored nothing are retried: after a lost connection, nobody knows.
    """
    step, did = _COMMIT_POINTS.get(work, ("", _never))

    def once() -> R:
        try:
            with engine.begin() as connection:
                result = work(connection, *args, **kwargs)
                if did(result):
                    fault_points.point(f"{step}.commit")
                return result
        except ValueError as error:
            # What psycopg2 says of a text that it cannot send.
            if isinstance(error, UnicodeEncodeError) or "NUL (0x00)" in str(error):
                raise PacelineError(UNSENDABLE) from None
            raise

    patience = retries.repeated(_stored_nothing, pause_s=PAUSE_S, stop=stop_after_delay(_patience_s(engine)))
    races = retries.repeated(_is_lost_race, pause_s=0.0, stop=stop_after_attempt(MAX_ATTEMPTS))
    result: R = patience(races, once)
    if did(result):
        fault_points.point(f"{step}.committed")
    return result


def _stored_nothing(error: BaseException) -> bool:
    # A connection that no server gave has stored nothing either.
    return isinstance(error, DBAPIError) and (sqlstates.is_undone(error.orig) or _is_read_only(error))


def _is_lost_race(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and sqlstates.is_lost_race(error.orig)


def commit_point(step: str, did: Callable[[Any], object] = bool) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name the fault points before and after the commit of this function's transaction, reached when `did(result)`."""

    def mark(work: Callable[P, R]) -> Callable[P, R]:
        _COMMIT_POINTS[work] = step, did
        return work

    return mark


def _never(_: object) -> bool:
    return False
