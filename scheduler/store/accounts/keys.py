"""Sessions, JWTs and API tokens: random texts of which only a digest is stored, with an end."""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from scheduler.store.accounts.accounts import Account
from scheduler.store.db import rows

#: How an API token begins, so that it is recognized where it must not be.
PREFIX = "pace_"
#: Expired keys that one login deletes.
SWEEP = 1000


def issue(
    connection: Connection, account_id: int, kind: str, *, lasts_s: float, name: str = "", address: str | None = None
) -> tuple[str, datetime]:
    """Return a new session, jwt, token or link of an account, and when it ends."""
    connection.exec_driver_sql(
        "delete from account_key where digest in (select digest from account_key where expires_at < clock_timestamp() limit %s)",
        (SWEEP,),
    )
    key = (PREFIX if kind == "token" else "") + secrets.token_urlsafe(32)
    expires_at = connection.exec_driver_sql(
        "insert into account_key (digest, account_id, kind, name, address, expires_at)"
        " values (%s, %s, %s, %s, %s, clock_timestamp() + make_interval(secs => %s)) returning expires_at",
        (digest(key), account_id, kind, name, address, lasts_s),
    ).scalar_one()
    return key, expires_at


#: Keys that have not ended, with their accounts.
VALID = """
select k.digest, a.id, a.name, a.role,
       coalesce((select jsonb_object_agg(t.tag, t.role) from account_tag t where t.account_id = a.id), '{}') as tags
  from account_key k join account a on a.id = k.account_id
 where k.expires_at > clock_timestamp()
"""


def account(connection: Connection, key: str, kind: str) -> Account | None:
    """The account of a key of this kind that has not ended."""
    return rows.first(Account, connection.exec_driver_sql(f"{VALID} and k.digest = %s and k.kind = %s", (digest(key), kind)))


def accounts(connection: Connection, digests: Collection[bytes]) -> dict[bytes, Account]:
    """The accounts of those of these keys that have not ended, by digest."""
    found = connection.exec_driver_sql(f"{VALID} and k.digest = any(%s::bytea[])", (list(digests),))
    return {bytes(row.digest): Account(row.id, row.name, row.role, row.tags) for row in found}


def use_link(connection: Connection, key: str) -> int | None:
    """The account of a login link, which ends with this use; None if it has ended."""
    row = connection.exec_driver_sql(
        "delete from account_key where digest = %s and kind = 'link' returning account_id, expires_at > clock_timestamp() as valid",
        (digest(key),),
    ).first()
    return row.account_id if row is not None and row.valid else None


def end(connection: Connection, key: str) -> None:
    """End a session."""
    connection.exec_driver_sql("delete from account_key where digest = %s", (digest(key),))


def tokens(connection: Connection, account_id: int) -> list[dict[str, Any]]:
    """The API tokens of an account that have not ended, by name."""
    found = connection.exec_driver_sql(
        "select name, created_at, expires_at from account_key"
        " where account_id = %s and kind = 'token' and expires_at > clock_timestamp() order by name, created_at",
        (account_id,),
    )
    return rows.dicts(found)


def revoke(connection: Connection, account_id: int, name: str) -> None:
    """Delete the API tokens of an account with this name. NotFoundError."""
    gone = connection.exec_driver_sql(
        "delete from account_key where account_id = %s and kind = 'token' and name = %s", (account_id, name)
    )
    if gone.rowcount == 0:
        raise NotFoundError(f"There is no token {name!r} of this account.")


def digest(key: str) -> bytes:
    """The stored form of a key. It is random and long, so a fast hash is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
