"""What a pool process uses instead of a connection of its own: a cursor over the pooler of its worker (pooler.py).

Each message is its length and a pickle. A pool process has one open request at a time.
"""

import io
import json
import pickle
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg2
from psycopg2.extras import Json

from paceline.authoring import xcom

Parameters = Sequence[Any] | Mapping[str, Any]
LENGTH = struct.Struct("!Q")
CHUNK = 262_144
#: Seconds until the pooler must have accepted a new client, before the pool process tries again.
READY_S = 10.0
READY = b"!"
GONE = "the pooler of this worker has ended or does not answer; its worker starts it again"
#: The packages with the classes of parameters, rows and errors.
OF_VALUES = frozenset({"datetime", "decimal", "uuid", "zoneinfo", "psycopg2", "paceline"})
#: The number of the type in PostgreSQL.
BYTEA, JSON, JSONB = 17, 114, 3802
#: For values that the pooler passes on as bytes and text. Lists of them are not used.
LOADS: Mapping[int, Callable[[Any], Any]] = {BYTEA: memoryview, JSON: xcom.decode, JSONB: json.loads}


class Request(NamedTuple):
    """A statement of a pool process. Without `statement`, the parameters of a step."""

    worker_id: str
    statement: str | None
    parameters: Parameters


class Column(NamedTuple):
    """As psycopg2 describes a column, as far as it is used."""

    name: str
    type_code: int


class Answer(NamedTuple):
    """The result of a statement, or its error."""

    columns: Sequence[Column] = ()
    rows: Sequence[tuple[Any, ...]] = ()
    error: psycopg2.Error | None = None


def packed(message: object) -> bytes:
    """The bytes of a message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


class _Unpickler(pickle.Unpickler):
    """Reads values only: user code can send anything."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in OF_VALUES or module == __name__:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"{module}.{name} is no value for a statement: pass a text, a number, a time or a list of them"
        )


def unpacked(data: bytes) -> Any:
    """The message in these bytes. pickle.UnpicklingError if it has something else than values."""
    return _Unpickler(io.BytesIO(data)).load()


class PooledCursor:
    """One client of the pooler. After an error, or an interruption, it must be closed: an answer may be on its way."""

    def __init__(self, address: str, timeout_s: float | None = None) -> None:
        """`timeout_s`: seconds that an answer may take. After that, `execute` fails as if the pooler were gone."""
        self.description: Sequence[Column] = ()
        self._rows: Sequence[tuple[Any, ...]] = ()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s or READY_S)
            self._socket.connect(address)
            if self._socket.recv(1) != READY:
                raise EOFError
            self._socket.settimeout(timeout_s)
        except (OSError, EOFError) as error:
            self._socket.close()
            raise psycopg2.OperationalError(f"{GONE} ({error})") from None

    def execute(self, worker_id: str, statement: str | None, parameters: Parameters = ()) -> None:
        """Send a statement, or a step, in the name of a worker, and wait for its answer."""
        try:
            self._socket.sendall(packed(Request(worker_id, statement, _plain(parameters))))
            (length,) = LENGTH.unpack(self._received(LENGTH.size))
            answer: Answer = unpacked(self._received(length))
        except (OSError, EOFError) as error:
            raise psycopg2.OperationalError(f"{GONE} ({error})") from None
        if answer.error is not None:
            raise answer.error
        self.description, self._rows = answer.columns, answer.rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        loads = [LOADS.get(column.type_code) for column in self.description]
        if not any(loads):
            return list(self._rows)
        return [
            tuple(value if load is None or value is None else load(value) for load, value in zip(loads, row, strict=True))
            for row in self._rows
        ]

    def close(self) -> None:
        self._socket.close()

    def _received(self, length: int) -> bytes:
        data = self._socket.recv(length)
        while len(data) < length:
            more = self._socket.recv(min(length - len(data), CHUNK))
            if not more:
                raise EOFError("its end of the socket is closed")
            data += more
        return data


def _plain(parameters: Parameters) -> Parameters:
    """JSON as its text: the pooler does not have the classes of user code."""
    if isinstance(parameters, Mapping):
        return {name: _text(value) for name, value in parameters.items()}
    return [_text(value) for value in parameters]


def _text(value: Any) -> Any:
    return value.dumps(value.adapted) if isinstance(value, Json) else value
