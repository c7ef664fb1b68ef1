"""Failed logins, counted in the database, so that every web process applies the same limit."""

import ipaddress

from sqlalchemy import Connection

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
