"""The meaning of PostgreSQL's errors by SQLSTATE: after which of them the same call can be repeated."""

import psycopg2
from sqlalchemy.exc import DataError, DBAPIError

#: deadlock_detected and serialization_failure: the whole transaction was rolled back, so it can be repeated.
LOST_RACES = frozenset({"40P01", "40001"})
#: Statements that took too long or waited too long for a lock on a server that answers.
TOO_SLOW = frozenset({"57014", "55P03"})
#: The session accepts no writes: its server is a standby, was demoted, or was set read-only. A standby rejects an unlogged table
#: as "not supported", the code of a prepared statement whose table was migrated too. A new connection fixes both.
READ_ONLY = frozenset({"25006", "0A000"})
#: insufficient_privilege: a person has to grant the right.
NO_RIGHT = "42501"
#: The class of statements that are too complex for the server.
_TOO_COMPLEX = "54"
#: Connections (08), resources (53), an operator or a shutdown (57), the server's system (58); a lock that was not available, an
#: object in use (55006); a session that was ended because its transaction was idle or long (25P03, 25P04).
_PASSING_CLASSES = ("08", "53", "57", "58")
_PASSING = LOST_RACES | TOO_SLOW | READ_ONLY | {"55006", "25P03", "25P04"}
#: Errors before or instead of a commit: nothing of the transaction was stored.
_UNDONE = LOST_RACES | READ_ONLY | {"53300", "57P03"}


def first_line(error: DBAPIError) -> str:
    """The message of PostgreSQL without its details, or the name of an error without a message."""
    text = str(error.orig).strip()
    return text.splitlines()[0] if text else type(error.orig).__name__


def unstorable(what: str, error: DataError) -> str:
    """The message for a value of a person or task that PostgreSQL rejects."""
    return f"{what} cannot be stored: {first_line(error)}. Remove that character."


def lost(error: psycopg2.Error) -> psycopg2.OperationalError | None:
    """The OperationalError for a connection that a crashing server ended, where psycopg2 raises DatabaseError without a code."""
    if type(error) is psycopg2.DatabaseError and error.pgcode is None:
        return psycopg2.OperationalError(*error.args)
    return None


def is_passing(error: object) -> bool:
    """Whether the error is temporary: the same call may succeed later on a new connection."""
    if not isinstance(error, psycopg2.Error):
        return False
    code = error.pgcode
    if code is None:  # libpq's own errors: no connection, or one that ended
        return isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError) or lost(error) is not None
    return code in _PASSING or code.startswith(_PASSING_CLASSES)


def is_lost_race(error: object) -> bool:
    """Whether the transaction lost a race and can be repeated at once."""
    return isinstance(error, psycopg2.Error) and error.pgcode in LOST_RACES


def is_read_only(error: object) -> bool:
    """Whether the server of this connection accepts no writes."""
    return isinstance(error, psycopg2.Error) and error.pgcode in READ_ONLY


def is_undone(error: object) -> bool:
    """Whether nothing of the transaction was stored, so that any transaction can be repeated."""
    return isinstance(error, psycopg2.Error) and error.pgcode in _UNDONE


def is_of_statement(error: object) -> bool:
    """Whether only this statement failed on a server that answers; another statement may succeed."""
    code = (error.pgcode or "") if isinstance(error, psycopg2.Error) else ""
    return code in TOO_SLOW | LOST_RACES or code.startswith(_TOO_COMPLEX)
