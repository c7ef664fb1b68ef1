"""What PostgreSQL's errors mean: after which of them the same call may be made again, by SQLSTATE."""

import psycopg2

#: deadlock_detected and serialization_failure: the transaction was undone whole, so it may be done again.
LOST_RACES = frozenset({"40P01", "40001"})
#: Statements that took too long or waited too long for a lock: the server is there.
TOO_SLOW = frozenset({"57014", "55P03"})
#: The session takes no writes: its server is a standby, was demoted, or was set read-only. A standby refuses an unlogged table as
#: "not supported"; so is a prepared statement whose table a migration has changed. Another connection mends both.
READ_ONLY = frozenset({"25006", "0A000"})
#: insufficient_privilege: somebody has to grant it.
NO_RIGHT = "42501"
#: The class of statements that are too complex for the server.
_TOO_COMPLEX = "54"
#: Connections (08), resources (53), the operator or a shutdown (57), the server's system (58); a lock that was not given, an object
#: in use; a session that was ended because its transaction was idle or long (25P03, 25P04).
_PASSING_CLASSES = ("08", "53", "57", "58")
_PASSING = LOST_RACES | TOO_SLOW | READ_ONLY | {"55006", "25P03", "25P04"}
#: The server has said so before or instead of a commit: nothing of the transaction was stored.
_UNDONE = LOST_RACES | READ_ONLY | {"53300", "57P03"}


def lost(error: psycopg2.Error) -> psycopg2.OperationalError | None:
    """The error of a connection that a crashing server has ended: psycopg2 knows no better than DatabaseError without a code."""
    if type(error) is psycopg2.DatabaseError and error.pgcode is None:
        return psycopg2.OperationalError(*error.args)
    return None


def is_passing(error: object) -> bool:
    """Whether the same call may succeed later, over a new connection; what is wrong with the call itself never passes."""
    if not isinstance(error, psycopg2.Error):
        return False
    code = error.pgcode
    if code is None:  # libpq's own errors: no connection, or one that ended
        return isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError) or lost(error) is not None
    return code in _PASSING or code.startswith(_PASSING_CLASSES)


def is_lost_race(error: object) -> bool:
    """Whether others were first: the transaction may be done again at once."""
    return isinstance(error, psycopg2.Error) and error.pgcode in LOST_RACES


def is_read_only(error: object) -> bool:
    """Whether this connection leads to a server that takes no writes."""
    return isinstance(error, psycopg2.Error) and error.pgcode in READ_ONLY


def is_undone(error: object) -> bool:
    """Whether nothing of the transaction was stored, and it may be done again whatever it does."""
    return isinstance(error, psycopg2.Error) and error.pgcode in _UNDONE


def is_of_statement(error: object) -> bool:
    """Whether the server is there and could not do this statement; another one may succeed."""
    code = (error.pgcode or "") if isinstance(error, psycopg2.Error) else ""
    return code in TOO_SLOW | LOST_RACES or code.startswith(_TOO_COMPLEX)
