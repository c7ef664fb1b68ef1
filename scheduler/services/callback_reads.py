"""Answers what callbacks read while they run: variables, connections and XComs. Their own process has no database."""

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from paceline.authoring.connection import FIELDS
from paceline.authoring.connection import Connection as OtherSystem
from paceline.exceptions import NotFoundError, PacelineError
from scheduler.dagfiles.answers import Wanted
from scheduler.settings import Settings
from scheduler.settings.environment import CONNECTION_PREFIXES
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections, variables
from scheduler.store.secrets.cipher import Cipher
from scheduler.store.worker import xcoms

#: Prior runs end at the run of the callback. This counts only if that has been deleted.
LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CallbackReads:
    """Reads one value after the other, as `{"value": ...}`, or as `{"error": ...}` if it cannot be read."""

    engine: Engine
    settings: Settings

    def __call__(self, wanted: Wanted) -> dict[str, Any]:
        try:
            return {
                "value": {"variable": self._variable, "connection": self._connection, "xcoms": self._xcoms}[wanted.wanted](wanted)
            }
        except PacelineError as error:
            return {"error": str(error)}
        except SQLAlchemyError:
            return {"error": f"The {wanted.wanted} {wanted.name!r} cannot be read: the database does not answer."}

    def _variable(self, wanted: Wanted) -> str | None:
        try:
            row = transact(self.engine, variables.variable, wanted.name, Cipher.of(self.settings, make=False))
        except NotFoundError:
            return None
        return str(row["value"])

    def _connection(self, wanted: Wanted) -> dict[str, Any] | None:
        names = (f"{prefix}{wanted.name.upper()}" for prefix in CONNECTION_PREFIXES)
        text = next((os.environ[name] for name in names if name in os.environ), None)
        try:
            if text is not None:
                found = OtherSystem.parse(wanted.name, text)
            else:
                found = transact(self.engine, connections.connection, wanted.name, Cipher.of(self.settings, make=False))
        except NotFoundError:
            return None
        return {name: getattr(found, name) for name in FIELDS}

    def _xcoms(self, wanted: Wanted) -> list[tuple[int, str]]:
        source = xcoms.Source(wanted.dag_id, wanted.run_id, wanted.name, wanted.prior, LATEST)
        values = asdict(source) | {"key": wanted.key, "index": wanted.map_index}
        return [(index, json.dumps(value)) for index, value in transact(self.engine, xcoms.of_task, values)]
