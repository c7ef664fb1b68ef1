"""Failed logins, counted in the database, so that every web process applies the same limit."""

import ipaddress

from sqlalchemy import Connection

#: From one address, failures over all accounts may be this many times those of one account.
OF_ADDRESS = 4
#: A customer of a provider has a network of IPv6 addresses, so its addresses count as one.
IPV6_NETWORK = 64


def seconds_to_wait(connection: Connection, name: str, address: str, *, attempts: int, window_s: float) -> float:
    """Seconds for which this address must not try again; 0 if it may."""
    wait: float = connection.exec_driver_sql(
        """
        select coalesce(max(extract(epoch from f.last_at + make_interval(secs => %(window)s) - clock_timestamp())), 0)
          from login_failure f join unnest(%(keys)s::text[], %(limits)s::int[]) k (key, most) using (key)
         where f.failures >= k.most
        """,
        {"keys": _keys(name, address), "limits": [attempts, attempts * OF_ADDRESS], "window": window_s},
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
    network = _network(address)
    return [f"{network} {name.lower()[:250]}", network]


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), IPV6_NETWORK), strict=False))
