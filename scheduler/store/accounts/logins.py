"""Failed logins, counted in the database, so that every web process applies the same limit."""

import hashlib
import ipaddress
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


#: From one address, failures over all accounts may be this many times those of one account; from one network, this many times.
OF_ADDRESS, OF_NETWORK = 4, 16
#: A customer of a provider has a network of IPv6 addresses, so its addresses count as one.
IPV6_ADDRESS = 64
#: The bits of the networks whose addresses one attacker may use in turn.
IPV4_NETWORK, IPV6_NETWORK = 24, 48


def seconds_to_wait(connection: Connection, name: str, address: str, *, attempts: int, window_s: float) -> float:
    """Seconds for which this address must not try again; 0 if it may.

    Failures of its network do not count for an address from which this account has logged in before: they may be those of an
    attacker among its neighbors, who must not lock it out.
    """
    wait: float = connection.exec_driver_sql(
        """
        select coalesce(max(extract(epoch from f.last_at + make_interval(secs => %(window)s) - clock_timestamp())), 0)
          from login_failure f join unnest(%(keys)s::text[], %(limits)s::int[]) k (key, most) using (key)
         where f.failures >= k.most and (k.key <> %(network)s or not exists (
                   select from account_key o join account a on a.id = o.account_id
                    where lower(a.name) = lower(%(name)s) and o.address = %(address)s))
        """,
        {
            "keys": _keys(name, address),
            "limits": [attempts, attempts * OF_ADDRESS, attempts * OF_NETWORK],
            "window": window_s,
            "network": _network(address),
            "name": name,
            "address": address,
        },
    ).scalar_one()
    return max(0.0, float(wait))


def failed(connection: Connection, name: str, address: str, *, window_s: float) -> None:
    """Count a failed login. Failures before the window are forgotten."""
    connection.exec_driver_sql(
        "delete from login_failure where last_at < clock_timestamp() - make_interval(secs => %s)", (window_s,)
    )
    connection.exec_driver_sql(
        """
        insert into login_failure as f (key, failures, last_at)
        select key, 1, clock_timestamp() from unnest(%s::text[]) key order by key
        on conflict (key) do update set failures = f.failures + 1, last_at = excluded.last_at
        """,
        (_keys(name, address),),
    )


def succeeded(connection: Connection, name: str, address: str) -> None:
    """Forget the failed logins of this account from this address."""
    connection.exec_driver_sql("delete from login_failure where key = %s", (_keys(name, address)[0],))


def _keys(name: str, address: str) -> list[str]:
    parsed = _parsed(address)
    own = str(parsed or address)
    if parsed is not None and parsed.version == 6:
        own = str(ipaddress.IPv6Network((int(parsed), IPV6_ADDRESS), strict=False))
    return [f"{own} {name.lower()[:250]}", own, _network(address)]


def _network(address: str) -> str:
    """The key of the network; it is never that of an address."""
    parsed = _parsed(address)
    if parsed is None:
        return f"{address} network"
    bits = IPV4_NETWORK if parsed.version == 4 else IPV6_NETWORK
    return f"{ipaddress.ip_network((int(parsed), bits), strict=False)} network"


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return parsed.ipv4_mapped or parsed if isinstance(parsed, ipaddress.IPv6Address) else parsed
