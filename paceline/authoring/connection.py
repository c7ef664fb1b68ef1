"""Connections: where another system is and how to log in there."""

from __future__ import annotations

import importlib
import json
import logging
import pkgutil
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from paceline import secrets_masker
from paceline.authoring import running
from paceline.authoring.json_schema import MAX_DEPTH, is_too_deep
from paceline.exceptions import NotFoundError, PacelineError

#: As in Airflow: the query key of a URI for an extra that is not a flat dict of strings.
EXTRA_KEY = "__extra__"
FIELDS = ("conn_type", "description", "host", "login", "password", "schema", "port", "extra")


@dataclass(kw_only=True)
class Connection:
    """One connection. A task reads it with `Connection.get("id")`, a template with `{{ conn.id.host }}`.

    `conn_id` is its name, and `conn_type` is the type of its hooks, such as "postgres". `host`, `port`, `schema` (often the
    database), `login` and `password` are the address of the other system and the login there. `extra` has everything else as the
    text of a JSON object, and `description` is for people.
    """

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
        """The connection with that ID; NotFoundError if there is none. PacelineError outside a running task."""
        instead = f"read it inside the task's function, or as {{{{ conn.{conn_id}.host }}}}"
        return _read(running.secrets_backend(f"Connection.get({conn_id!r})", instead), conn_id)

    @classmethod
    def from_uri(cls, conn_id: str, uri: str) -> Self:
        """From type://login:password@host:port/schema?key=value with percent-encoded parts.

        PacelineError, without secrets, if it is not valid.
        """
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError:
            raise PacelineError(f"The URI of connection {conn_id!r} cannot be read: percent-encode its parts.") from None
        if not parts.scheme:
            raise PacelineError(f"The URI of connection {conn_id!r} must start with its type, as in postgres://login@host/db.")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        extra = query.pop(EXTRA_KEY, None)
        if extra is None and query:
            extra = json.dumps(query)
        connection = cls(
            conn_id=conn_id,
            conn_type="postgres" if parts.scheme == "postgresql" else parts.scheme.replace("-", "_"),
            host=_unquoted(_host(parts.netloc)),
            login=_unquoted(parts.username),
            password=_unquoted(parts.password),
            schema=_unquoted(parts.path.removeprefix("/")),
            port=port,
            extra=extra,
        )
        connection.check()
        return connection

    @classmethod
    def from_json(cls, conn_id: str, text: str | dict[str, Any]) -> Self:
        """From a JSON object with conn_type and any of host, login, password, schema, port, extra, description.

        PacelineError, without secrets, if it is not valid.
        """
        try:
            values = json.loads(text) if isinstance(text, str) else dict(text)
        except (ValueError, RecursionError):
            raise PacelineError(f"Connection {conn_id!r} is not JSON; write an object with conn_type, host, login...") from None
        if not isinstance(values, dict) or not isinstance(values.get("conn_type"), str) or not values["conn_type"]:
            raise PacelineError(f"Connection {conn_id!r} must be a JSON object with conn_type.")
        values.pop("conn_id", None)
        unknown = sorted(set(values) - set(FIELDS))
        if unknown:
            raise PacelineError(f"Connection {conn_id!r} has no field {unknown[0]!r}; known are {', '.join(FIELDS)}.")
        if isinstance(values.get("extra"), dict):
            values["extra"] = json.dumps(values["extra"], ensure_ascii=False)
        connection = cls(conn_id=conn_id, **values)
        connection.check()
        return connection

    @classmethod
    def parse(cls, conn_id: str, text: str) -> Self:
        """From a JSON object if the text starts with a brace, else from a URI."""
        return cls.from_json(conn_id, text) if text.lstrip().startswith("{") else cls.from_uri(conn_id, text)

    def check(self) -> None:
        """Check every field. PacelineError, without secrets, names the first that is wrong."""
        for name in ("conn_id", *FIELDS):
            value = getattr(self, name)
            if name == "port":
                if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 65535):
                    raise PacelineError(f"The port of connection {self.conn_id!r} must be a whole number from 0 to 65535.")
            elif value is not None and (not isinstance(value, str) or "\0" in value):
                raise PacelineError(f"The field {name} of connection {self.conn_id!r} must be a string without NUL characters.")
        try:
            extra = json.loads(self.extra) if self.extra is not None and self.extra.strip() else {}
        except (ValueError, RecursionError):
            extra = None
        if not isinstance(extra, dict) or is_too_deep(extra):
            raise PacelineError(f"The extra of connection {self.conn_id!r} must be a JSON object, at most {MAX_DEPTH} levels deep.")

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """`extra` as a dict."""
        extra: dict[str, Any] = json.loads(self.extra) if self.extra and self.extra.strip() else {}
        return extra

    def get_uri(self) -> str:
        """The whole connection as one URI, including the password."""
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

    def get_hook(self, *, hook_params: dict[str, Any] | None = None) -> Any:
        """A hook for this connection, see paceline/authoring/connection. NotFoundError if no installed package has one."""
        return hook_of(self, hook_params)

    def get_extra_dejson(self, nested: bool = False) -> dict[str, Any]:
        """`extra` as a dict."""
        return self.extra_dejson

    def as_dict(self) -> dict[str, Any]:
        """All fields, including the password, with `extra` as a dict."""
        return {"conn_id": self.conn_id} | {name: getattr(self, name) for name in FIELDS} | {"extra": self.extra_dejson}


class ConnectionBackend(Protocol):
    """The source of connections."""

    def connection(self, conn_id: str) -> Connection | None:
        """The connection with that ID; None if there is none."""


@dataclass(eq=False, repr=False)
class Connections:
    """`conn` of a context: `conn.id`, `conn["id"]`, `conn.get(id, default)`."""

    _backend: ConnectionBackend

    def get(self, conn_id: str, default_conn: Any = None) -> Any:
        try:
            return _read(self._backend, conn_id)
        except NotFoundError:
            return default_conn

    def __getattr__(self, conn_id: str) -> Connection:
        if conn_id.startswith("__"):
            raise AttributeError(conn_id)
        return _read(self._backend, conn_id)

    def __getitem__(self, conn_id: str) -> Connection:
        return _read(self._backend, conn_id)


def _read(backend: ConnectionBackend, conn_id: str) -> Connection:
    """Read a connection, and mask its password and the secrets in its extra in the log of the task; NotFoundError."""
    connection = backend.connection(conn_id)
    if connection is None:
        command = f"paceline connections add {conn_id} --conn-uri URI"
        raise NotFoundError(
            f"There is no connection {conn_id!r}; create it with `{command}`, or set PACELINE_CONN_{conn_id.upper()}."
        )
    secrets_masker.mask_secret(connection.password)
    for secret in secrets_masker.secrets_in(connection.extra_dejson):
        secrets_masker.mask_secret(secret)
    return connection


def _host(netloc: str) -> str:
    """The host in its original case, which urlsplit changes to lower case."""
    host = netloc.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _unquoted(part: str | None) -> str | None:
    return unquote(part) if part else None


#: The entry points of packages for Airflow. Each is a function that returns the description of the package.
PROVIDERS = "apache_airflow_provider"


def hook_of(connection: Any, hook_params: dict[str, Any] | None = None) -> Any:
    """A hook for a connection, of the class that an installed package for Airflow names for its type.

    `hook_params` are further arguments of the class. NotFoundError if no package names one.
    """
    hook_class = _hook_classes().get(connection.conn_type)
    if hook_class is None:
        raise NotFoundError(
            f"No installed package has a hook for connections of the type {connection.conn_type!r} (connection "
            f"{connection.conn_id!r}); install one on the workers, or create the client yourself from Connection.get()."
        )
    path, argument = hook_class
    hook = pkgutil.resolve_name(path)
    # Only this hook is imported: others may need packages that are not installed.
    return hook(**{argument or _argument_of(path): connection.conn_id, **(hook_params or {})})


def task_decorator(name: str) -> Any:
    """The function of an installed package for `@task.<name>`; None if no package has one, or `airflow` cannot be imported."""
    for point in entry_points(group=PROVIDERS):
        try:
            about: dict[str, Any] = point.load()()
        except ImportError:
            continue
        for decorator in about.get("task-decorators", ()):
            if decorator["name"] == name:
                module, _, function = decorator["class-name"].rpartition(".")
                return getattr(importlib.import_module(module), function)
    return None


@cache
def _hook_classes() -> dict[str, tuple[str, str]]:
    """The import path of the hook and the name of its argument for the connection, by the type of connections."""
    classes = {}
    for point in entry_points(group=PROVIDERS):
        about: dict[str, Any] = point.load()()
        for kind in about.get("connection-types", ()):
            classes[kind["connection-type"]] = (kind["hook-class-name"], kind.get("conn-id-argument") or "")
    return classes


def _argument_of(path: str) -> str:
    """The name of the argument that takes the connection: an attribute of the class, as in Airflow."""
    try:
        return str(pkgutil.resolve_name(path).conn_name_attr)
    except (ImportError, AttributeError):
        return "conn_id"


class BaseHook:
    """Base class of hooks. Subclasses implement `get_conn`, and read their connection with `get_connection`.

    `logger_name` is the name of `log`, by default that of the class.
    """

    def __init__(self, logger_name: str | None = None) -> None:
        self._logger_name = logger_name

    @property
    def log(self) -> logging.Logger:
        """A logger, whose lines are in the log of the task."""
        kind = type(self)
        return logging.getLogger(getattr(self, "_logger_name", None) or f"{kind.__module__}.{kind.__qualname__}")

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """The connection with that ID; NotFoundError if there is none. PacelineError outside a running task."""
        return Connection.get(conn_id)

    @classmethod
    async def aget_connection(cls, conn_id: str) -> Connection:
        """`get_connection` for a coroutine: it does not block the event loop."""
        import asyncio

        return await asyncio.to_thread(cls.get_connection, conn_id)

    @classmethod
    def get_hook(cls, conn_id: str, hook_params: dict[str, Any] | None = None) -> Any:
        """The hook for the type of a connection, see `hook_of`."""
        return hook_of(cls.get_connection(conn_id), hook_params)

    @classmethod
    async def aget_hook(cls, conn_id: str, hook_params: dict[str, Any] | None = None) -> Any:
        """`get_hook` for a coroutine: it does not block the event loop."""
        return hook_of(await cls.aget_connection(conn_id), hook_params)

    def get_conn(self) -> Any:
        """The client of the other system. Subclasses implement it."""
        raise NotImplementedError(f"{type(self).__name__} has no get_conn().")

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Fields and labels for forms, as in Airflow; not used."""
        return {}

    get_ui_field_behaviour = get_connection_form_widgets
