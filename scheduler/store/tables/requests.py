"""Requests that have an idempotency key: each is done once, however often a client that got no answer sends it."""

import hashlib
import json

from sqlalchemy import Connection


def digest(caller: str, key: str, *request: str) -> bytes:
    """What is stored of a request. An equal request of another caller, or with another key, has another digest."""
    return hashlib.sha256(json.dumps([caller, key, *request]).encode("utf-8", "surrogatepass")).digest()


def is_done(connection: Connection, request: bytes) -> bool:
    """Whether a request has been done."""
    found = connection.exec_driver_sql("select 1 from table_request where digest = %s", (request,))
    return found.first() is not None


def note(connection: Connection, request: bytes | None) -> bool:
    """Note that a request is done by this transaction; False if another one did it, for which this waits."""
    if request is None:
        return True
    noted = connection.exec_driver_sql("insert into table_request (digest) values (%s) on conflict do nothing", (request,))
    return noted.rowcount == 1
