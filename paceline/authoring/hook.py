"""Hooks: classes that talk to another system with the data of a connection."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from paceline.authoring.connection import Connection
from paceline.authoring.providers import hook_of


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
