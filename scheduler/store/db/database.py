"""Connections to PostgreSQL: the engine of a process, reads, and transactions that are retried when that is safe."""

import contextlib
import functools
import getpass
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import psycopg2
from psycopg2 import extensions, extras
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError
from sqlalchemy.pool import NullPool, StaticPool
from tenacity import stop_after_attempt, stop_after_delay

from paceline.exceptions import START_EMBEDDED, CredentialsError, PacelineError, ReadOnlyError, UnreachableError
from scheduler.process import fault_points, retries
from scheduler.settings import Settings
from scheduler.store.db import pooler, sqlstates

P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = 5
#: Seconds between two attempts of a transaction while the server takes no writes.
PAUSE_S = 0.2
#: The settings of every session: short limits on waiting for a lock and on an idle transaction. With database.statement_timeout
#: (`begin_session`), no statement of a process blocks others for longer. If a process stops inside a transaction, its pools and
#: runs stay locked until the server ends its session.
SESSION = {"timezone": "UTC", "lock_timeout": "30s", "idle_in_transaction_session_timeout": "10s"}
#: More settings for schedulers. Each of their statements has an index, but after a table was analyzed while it was small, a
#: sequential scan looks as cheap: 256 decisions on a run of 10,000 would then scan it 256 times. Compilation never pays off.
BY_INDEX = {"enable_seqscan": "off", "jit": "off"}
SET_ALL = "select set_config(name, value, false) from unnest(%s, %s) as session (name, value)"
ACTOR, PATIENCE, USED_AT = "paceline_actor", "paceline_patience", "paceline_used_at"
#: A connection that was used less than this many seconds ago is not tested again. A test takes as long as a short statement.
FRESH_S = 1.0
NO_MORE: Mapping[str, str] = MappingProxyType({})
#: With several servers in a URL, standbys and demoted servers are skipped; a single server is waited for.
WRITABLE = "read-write"
UNSENDABLE = "A string with a NUL character or half of a surrogate pair cannot be stored or looked up: remove that character."
#: Messages of libpq if the server rejects the credentials.
REFUSED = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
#: Messages of libpq if no server of the URL accepts writes.
STANDBY = ("session is read-only", "server is in hot standby mode", "the database system is not accepting connections")
#: TCP options with which a vanished peer is noticed within half a minute.
TCP: dict[str, Any] = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
#: Messages of libpq if the server or its certificate does not fit sslmode. Waiting would not fix that.
UNTRUSTED = (
    "certificate verify failed", "does not match host name", "does not support SSL", "root certificate file", "weak sslmode",
    "could not read root certificate",
)  # fmt: skip


def create(
    settings: Settings,
    *,
    pool_size: int | None = None,
    application: str = "paceline",
    actor: str | None = None,
    by_index: bool = False,
    patience_s: float = 0.0,
) -> Engine:
    """The engine of one process. It connects lazily; `check` connects now. For `actor` see `act_as`, for `by_index` BY_INDEX.

    It keeps `pool_size` connections open; with 0, it opens one for each transaction. `patience_s` is how long a transaction is
    repeated while the server accepts no writes. Processes with a loop do not need it.
    """
    url = settings.database_url
    if not url.startswith(("postgresql://", "postgres://")):
        raise UnreachableError("database.url must start with postgresql://; Paceline keeps its state in PostgreSQL only.")
    pool: dict[str, Any] = {"pool_size": pool_size or settings.database.pool_size}

    def creator() -> extensions.connection:
        return accept(connect(settings, application, BY_INDEX if by_index else {}))

    engine = create_engine("postgresql+psycopg2://", creator=creator, **({"poolclass": NullPool} if pool_size == 0 else pool))
    # Before SQLAlchemy's own first statements: a pooler of statements refuses them.
    event.listen(engine, "first_connect", lambda connection, _: pooler.check(connection, creator), insert=True)
    act_as(engine, actor or f"cli:{user()}")
    engine.update_execution_options(**{PATIENCE: patience_s})
    event.listen(engine, "connect", _note_use)
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", _ping)
    event.listen(engine, "checkout", functools.partial(_set_actor, engine))
    event.listen(engine, "handle_error", _classify)
    return engine


def over(connection: extensions.connection, actor: str) -> Engine:
    """An engine over one open connection, whose session acts as `actor`. It neither replaces nor closes the connection."""
    engine = create_engine("postgresql+psycopg2://", creator=lambda: connection, poolclass=StaticPool, use_native_hstore=False)
    act_as(engine, actor)
    event.listen(engine, "handle_error", _classify)
    return engine


def connect(settings: Settings, application: str, session: Mapping[str, str] = NO_MORE, *, then: str = "") -> extensions.connection:
    """A separate connection to the server that accepts writes, in a session with SESSION and `session`.

    `then` are more statements, sent together with the settings.
    """
    return begin_session(reach(settings, application), settings, session, then=then)


def reach(settings: Settings, application: str, *, timeout_s: int | None = None) -> extensions.connection:
    """A connection to the server that accepts writes. It needs `begin_session`."""
    dsn = settings.database_url.replace("postgres://", "postgresql://", 1)
    connection: extensions.connection = psycopg2.connect(
        dsn,
        application_name=application,
        # The settings follow in a statement: a pooler would refuse them here, or drop them silently.
        options="",
        target_session_attrs=extensions.parse_dsn(dsn).get("target_session_attrs", WRITABLE),
        connect_timeout=timeout_s or settings.database.connect_timeout,
        **TCP,
    )
    return connection


def begin_session(
    connection: extensions.connection, settings: Settings, session: Mapping[str, str] = NO_MORE, *, then: str = ""
) -> extensions.connection:
    """Set SESSION, the statement timeout, whether changes of state become events, and `session`. Run `then` in the same message.

    Returns the connection, or closes it and raises the error.
    """
    chosen = {"statement_timeout": str(int(settings.database.statement_timeout * 1000))}
    if not settings.core.record_events:
        chosen["paceline.events"] = "off"
    every = SESSION | chosen | dict(session)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            set_all = cursor.mogrify(SET_ALL, (list(every), list(every.values()))).decode()
            cursor.execute(f"{set_all};{then}")
        connection.autocommit = False
    except psycopg2.Error:
        connection.close()
        raise
    return connection


def libpq_variables() -> dict[str, str]:
    """The variables of this process that libpq reads."""
    return {name: value for name, value in os.environ.items() if name.startswith("PG") or name == "HOME"}


@contextlib.contextmanager
def libpq_environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Give libpq these variables."""
    changed = libpq_variables()
    if changed == wanted:
        yield
        return
    _replace_variables(changed, wanted)
    try:
        yield
    finally:
        _replace_variables(wanted, changed)


def _replace_variables(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old.keys() - new.keys():
        del os.environ[name]
    os.environ.update(new)


def _classify(context: ExceptionContext) -> None:
    """Turn temporary errors into OperationalError, after which every loop tries again.

    If the server accepts no writes, all connections of the pool are replaced.
    """
    error = context.original_exception
    if sqlstates.is_read_only(error):
        context.is_disconnect = True
    if isinstance(error, psycopg2.Error) and sqlstates.is_passing(error):
        known = sqlstates.lost(error) or error
        raise OperationalError(context.statement, context.parameters, known, connection_invalidated=context.is_disconnect)


def act_as(engine: Engine, actor: str) -> None:
    """Set the actor in the events of all changes by this engine: the ID of a process, or cli:<user>."""
    engine.update_execution_options(**{ACTOR: actor})


def _ping(connection: Any, record: Any, _: object) -> None:
    """Test a connection that has not been used for a while. SQLAlchemy replaces it if the test fails."""
    if time.monotonic() - record.info.get(USED_AT, 0.0) < FRESH_S:
        return
    try:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute("select 1")
        connection.rollback()
    except psycopg2.Error as error:
        raise DisconnectionError(str(error)) from error


def _note_use(_: object, record: Any) -> None:
    record.info[USED_AT] = time.monotonic()


def _set_actor(engine: Engine, connection: Any, record: Any, _: object) -> None:
    """Set the actor of a connection: once for each new connection, and again if the process gets another ID."""
    actor = engine.get_execution_options()[ACTOR]
    if record.info.get(ACTOR) == actor:
        return
    try:
        # One message, where a transaction would take three.
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("select set_config('paceline.actor', %s, false)", (actor,))
        connection.autocommit = False
    except psycopg2.Error as error:
        raise DisconnectionError(str(error)) from error
    record.info[ACTOR] = actor


def user() -> str:
    """The name of the user who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return "unknown"


def patiently(connection: Connection, *, seconds: float = 0) -> None:
    """Set a longer statement timeout for this transaction; 0 is no limit."""
    connection.exec_driver_sql("select set_config('statement_timeout', %s, true)", (str(int(seconds * 1000)),))


def check(engine: Engine) -> None:
    """Connect; UnreachableError or CredentialsError names the problem. It waits for a failover for the patience of the engine."""
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


def translate(error: DBAPIError) -> PacelineError:
    """The error message of a failed connection for people, without the password of the URL."""
    text = sqlstates.first_line(error)
    code = getattr(error.orig, "pgcode", None)
    if code in sqlstates.TOO_SLOW:
        return UnreachableError(f"PostgreSQL canceled a statement: {text}.", fix="Try again when the server is less busy.")
    if _is_read_only(error):
        return ReadOnlyError(
            f"PostgreSQL accepts no writes now: {text}.",
            fix="Promote a standby, or name all servers in PACELINE_DATABASE_URL (docs/how-to/failover.md).",
        )
    refused = _refused(text, code)
    start = START_EMBEDDED.format("DATABASE") if "socket" in text else "Start it, or correct PACELINE_DATABASE_URL."
    return refused or UnreachableError(f"PostgreSQL does not answer: {text}.", fix=start)


def _refused(text: str, code: str | None) -> CredentialsError | None:
    """The error if the server rejects the connection or the statement for lack of rights; None for any other text."""
    if code == sqlstates.NO_RIGHT:
        return CredentialsError(
            f"The database role lacks a right: {text}.",
            fix="Run `paceline db migrate` as the owner of the tables to grant the roles of PACELINE_DATABASE_URL and"
            " PACELINE_WORKER_DATABASE_URL what they need.",
        )
    if any(phrase in text for phrase in UNTRUSTED):
        return CredentialsError(
            f"The connection to PostgreSQL is not secure: {text}.", fix="Correct sslmode and sslrootcert in PACELINE_DATABASE_URL."
        )
    if 'role "' in text and text.endswith("does not exist"):
        return CredentialsError(
            f"PostgreSQL rejects the connection: {text}.",
            fix="Correct PACELINE_DATABASE_URL, or create the role with `paceline db migrate`.",
        )
    if any(phrase in text for phrase in REFUSED):
        return CredentialsError(f"PostgreSQL rejects the connection: {text}.", fix="Correct PACELINE_DATABASE_URL.")
    return None


def _is_read_only(error: DBAPIError) -> bool:
    return sqlstates.is_read_only(error.orig) or any(phrase in str(error.orig) for phrase in STANDBY)


def wait(engine: Engine, say: Callable[[str], None]) -> None:
    """Wait until the database answers, and log that once; wrong credentials end the wait at once."""
    retries.await_server(functools.partial(check, engine), say)


def until_answered(engine: Engine, *, pause_s: float, **more: Any) -> Callable[..., Any]:
    """Return `transact` for this engine, repeated until the database answers; see retries.repeated for the arguments."""
    repeat = retries.repeated(lambda error: isinstance(error, OperationalError), pause_s=pause_s, **more)
    return functools.partial(repeat, transact, engine)


class Step(Generic[P, R]):
    """A function that runs in a transaction, with fault points before and after its commit, reached when `did(result)`."""

    def __init__(self, name: str, did: Callable[[R], object], work: Callable[P, R]) -> None:
        self.name, self.did, self._work = name, did, work
        functools.update_wrapper(self, work)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._work(*args, **kwargs)


def step(name: str, did: Callable[[Any], object] = bool) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Name the step that a function is when it runs in a transaction."""
    return functools.partial(Step, name, did)


def transact(engine: Engine, work: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return `work(connection, ...)`, run in a transaction. Retry it after a lost race, and for the engine's patience while the
    server accepts no writes.

    Only errors with which the server confirms that it stored nothing are retried. After a lost connection, this is unknown.
    """
    named = work if isinstance(work, Step) else None

    def once() -> R:
        try:
            with engine.begin() as connection:
                result = work(connection, *args, **kwargs)
                if named is not None and named.did(result):
                    fault_points.point(f"{named.name}.commit")
                return result
        except ValueError as error:
            # The errors of psycopg2 for a string that it cannot send.
            if isinstance(error, UnicodeEncodeError) or "NUL (0x00)" in str(error):
                raise PacelineError(UNSENDABLE) from None
            raise

    patience = retries.repeated(_stored_nothing, pause_s=PAUSE_S, stop=stop_after_delay(_patience_s(engine)))
    races = retries.repeated(_is_lost_race, pause_s=0.0, stop=stop_after_attempt(MAX_ATTEMPTS))
    result: R = patience(races, once)
    if named is not None and named.did(result):
        fault_points.point(f"{named.name}.committed")
    return result


def read(engine: Engine, work: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return `work(connection, ...)`, which changes nothing, without a transaction: it would cost three messages to the server.

    Each statement sees what was committed before it, as in transactions of Paceline. After a lost connection or a lost race, it is
    done again in a transaction.
    """
    try:
        with engine.connect() as connection, autocommit(connection):
            return work(connection, *args, **kwargs)
    except ValueError:
        return transact(engine, work, *args, **kwargs)  # it translates the errors of values that cannot be sent
    except DBAPIError as error:
        if error.connection_invalidated or sqlstates.is_undone(error.orig) or sqlstates.is_lost_race(error.orig):
            return transact(engine, work, *args, **kwargs)
        raise


@contextlib.contextmanager
def autocommit(connection: Connection) -> Iterator[None]:
    """Autocommit of the driver: SQLAlchemy's isolation level would cost two messages to the server."""
    raw: Any = connection.connection.dbapi_connection
    raw.autocommit = True
    try:
        yield
    finally:
        if not raw.closed:
            raw.autocommit = False


def rehearse(engine: Engine, work: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """As `transact`, but undo every change: for a dry run."""

    def undone(connection: Connection) -> R:
        result = work(connection, *args, **kwargs)
        connection.rollback()
        return result

    return transact(engine, undone)


def _stored_nothing(error: BaseException) -> bool:
    # Without a connection, nothing was stored either.
    return isinstance(error, DBAPIError) and (sqlstates.is_undone(error.orig) or _is_read_only(error))


def _is_lost_race(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and sqlstates.is_lost_race(error.orig)


TIMESTAMPTZ = 1184
#: A day from the ends of Python's calendar, so that any time zone can show them.
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
UNREADABLE = "(JSON that cannot be read)"


def accept(connection: extensions.connection) -> extensions.connection:
    """Let this connection read such a time as EARLIEST or LATEST, and such JSON as UNREADABLE."""
    extensions.register_type(_MOMENT, connection)
    extras.register_default_json(connection, loads=_loads)
    extras.register_default_jsonb(connection, loads=_loads)
    return connection


def _moment(text: str | bytes | None, cursor: extensions.cursor) -> datetime | None:
    if not isinstance(text, str):
        return None
    if text == "-infinity" or text.endswith("BC"):
        return EARLIEST
    try:
        moment: datetime = extensions.PYDATETIMETZ(text, cursor)
    except (ValueError, OverflowError):
        return LATEST
    return min(max(moment, EARLIEST), LATEST)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE


_MOMENT = extensions.new_type((TIMESTAMPTZ,), "moment", _moment)
