"""Connections: where another system is and how to log in there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from scheduler.authoring import running
from scheduler.exceptions import NotFoundError, PacelineError
from scheduler.masking import secrets_masker

#: As in Airflow: the key under which a URI carries an extra that is no flat dict of texts.
EXTRA_KEY = "__extra__"
FIELDS = ("conn_type", "description", "host", "login", "password", "schema", "port", "extra")


@dataclass(kw_only=True)
class Connection:
    """One connection. `Connection.get("id")` inside a task; templates write `{{ conn.id.host }}`."""

    conn_id: str
    conn_type: str
    description: str | None = None
    host: str | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    schema: str | None = None
    port: int | None = None
    #: A JSON object as text.
    extra: str | None = field(default=None, repr=False)

    @staticmethod
    def get(conn_id: str) -> Connection:
        """The connection of that id; NotFoundError."""
        return _found(running.secrets_backend("Connection.get()"), conn_id)

    @classmethod
    def from_uri(cls, conn_id: str, uri: str) -> Self:
        """type://login:password@host:port/schema?key=value, each part percent-encoded; PacelineError, which holds no secret."""
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError:
            raise PacelineError(f"The URI of connection {conn_id!r} cannot be read: percent-encode its parts.") from None
        if not parts.scheme:
            raise PacelineError(f"The URI of connection {conn_id!r} must begin with its type, as in postgres://login@host/db.")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        extra = query.pop(EXTRA_KEY, None)
        if extra is None and query:
            extra = json.dumps(query)
        made = cls(
            conn_id=conn_id,
            conn_type="postgres" if parts.scheme == "postgresql" else parts.scheme.replace("-", "_"),
            host=_unquoted(_host(parts.netloc)),
            login=_unquoted(parts.username),
            password=_unquoted(parts.password),
            schema=_unquoted(parts.path.removeprefix("/")),
            port=port,
            extra=extra,
        )
        made.check()
        return made

    @classmethod
    def from_json(cls, conn_id: str, text: str | dict[str, Any]) -> Self:
        """An object with conn_type and any of host, login, password, schema, port, extra, description; PacelineError."""
        try:
            values = json.loads(text) if isinstance(text, str) else dict(text)
        except ValueError:
            raise PacelineError(f"Connection {conn_id!r} is not JSON; write an object with conn_type, host, login ...") from None
        if not isinstance(values, dict) or not isinstance(values.get("conn_type"), str) or not values["conn_type"]:
            raise PacelineError(f"Connection {conn_id!r} must be a JSON object with conn_type.")
        values.pop("conn_id", None)
        unknown = sorted(set(values) - set(FIELDS))
        if unknown:
            raise PacelineError(f"Connection {conn_id!r} has no field {unknown[0]!r}; known are {', '.join(FIELDS)}.")
        if isinstance(values.get("extra"), dict):
            values["extra"] = json.dumps(values["extra"], ensure_ascii=False)
        made = cls(conn_id=conn_id, **values)
        made.check()
        return made

    @classmethod
    def parse(cls, conn_id: str, text: str) -> Self:
        """A URI, or a JSON object if it begins with a brace."""
        return cls.from_json(conn_id, text) if text.lstrip().startswith("{") else cls.from_uri(conn_id, text)

    def check(self) -> None:
        """PacelineError if a field cannot be what it is; nothing secret is part of it."""
        for name in ("conn_id", *FIELDS):
            value = getattr(self, name)
            if name == "port":
                if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 65535):
                    raise PacelineError(f"The port of connection {self.conn_id!r} must be a whole number from 0 to 65535.")
            elif value is not None and (not isinstance(value, str) or "\0" in value):
                raise PacelineError(f"The field {name} of connection {self.conn_id!r} must be a text without NUL characters.")
        try:
            fits = self.extra is None or not self.extra.strip() or isinstance(json.loads(self.extra), dict)
        except ValueError:
            fits = False
        if not fits:
            raise PacelineError(f"The extra of connection {self.conn_id!r} must be a JSON object.")

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """`extra` as a dict."""
        found: dict[str, Any] = json.loads(self.extra) if self.extra and self.extra.strip() else {}
        return found

    def get_uri(self) -> str:
        """All of it as one URI, the password included."""
        login = quote(self.login or "", safe="")
        if self.password is not None:
            login += ":" + quote(self.password, safe="")
        port = "" if self.port is None else f":{self.port}"
        uri = f"{self.conn_type.lower().replace('_', '-')}://{login}{'@' if login else ''}{quote(self.host or '', safe='')}{port}"
        uri += f"/{quote(self.schema or '', safe='')}"
        extra = self.extra_dejson
        if not extra:
            return uri
        flat = all(isinstance(value, str) for value in extra.values()) and EXTRA_KEY not in extra
        return f"{uri}?{urlencode(extra if flat else {EXTRA_KEY: self.extra})}"

    def as_dict(self) -> dict[str, Any]:
        """All of it with `extra` as a dict."""
        return {"conn_id": self.conn_id} | {name: getattr(self, name) for name in FIELDS} | {"extra": self.extra_dejson}


class ConnectionBackend(Protocol):
    """Where connections are found."""

    def connection(self, conn_id: str) -> Connection | None:
        """The connection of that id; None if there is none."""


@dataclass(eq=False, repr=False)
class Connections:
    """`conn` of a context: `conn.id`, `conn.get(id, default)`."""

    _backend: ConnectionBackend

    def get(self, conn_id: str, default_conn: Any = None) -> Any:
        try:
            return _found(self._backend, conn_id)
        except NotFoundError:
            return default_conn

    def __getattr__(self, conn_id: str) -> Connection:
        if conn_id.startswith("__"):
            raise AttributeError(conn_id)
        return _found(self._backend, conn_id)

    def __getitem__(self, conn_id: str) -> Connection:
        return _found(self._backend, conn_id)


def _found(backend: ConnectionBackend, conn_id: str) -> Connection:
    """A connection, its password and what is secret in its extra masked in the task's log first; NotFoundError."""
    found = backend.connection(conn_id)
    if found is None:
        raise NotFoundError(f"There is no connection {conn_id!r}: `paceline connections add {conn_id} --conn-uri URI` makes it.")
    secrets_masker.mask_secret(found.password)
    for secret in secrets_masker.secrets_in(found.extra_dejson):
        secrets_masker.mask_secret(secret)
    return found


def _host(netloc: str) -> str:
    """The host as it is written: urlsplit makes it lower case."""
    host = netloc.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _unquoted(part: str | None) -> str | None:
    return unquote(part) if part else None
