"""Accounts with their roles and rights by tag."""

import functools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import argon2
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Connection

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from scheduler.store.db import rows

#: In characters. The upper limit keeps a request from occupying the hash function for long.
SHORTEST, LONGEST = 8, 1000
#: What a hash costs: passes, memory in KiB, threads.
TIME_COST, MEMORY_COST, LANES = argon2.DEFAULT_TIME_COST, argon2.DEFAULT_MEMORY_COST, argon2.DEFAULT_PARALLELISM


def hashed(password: str) -> str:
    """Return the hash of a new password. PacelineError if it is too short or too long."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise PacelineError(f"A password has {SHORTEST} to {LONGEST} characters: choose another.")
    return _hasher().hash(password.encode("utf-8", "surrogatepass"))


def fits(password: str, hash_: str | None) -> bool:
    """Whether the password has this hash. It takes as long if there is none, so that account names cannot be tried out."""
    try:
        return _hasher().verify(hash_ or _unknown(), password[:LONGEST].encode("utf-8", "surrogatepass")) and hash_ is not None
    except (VerificationError, InvalidHashError):
        return False


def generated() -> str:
    """Return a random password."""
    return secrets.token_urlsafe(15)


def _hasher() -> PasswordHasher:
    return PasswordHasher(TIME_COST, MEMORY_COST, LANES)


@functools.cache
def _unknown() -> str:
    return _hasher().hash(secrets.token_urlsafe())


#: From the least to the most. Each has the rights of those before it.
ROLES = ("viewer", "operator", "admin")
NAME = re.compile(r"[^\s/:\x00-\x1f\x7f](?:[^/:\x00-\x1f\x7f]{0,98}[^\s/:\x00-\x1f\x7f])?")
#: Serializes the creation of the first account; any number that nothing else uses for an advisory lock.
FIRST_ACCOUNT_LOCK = 7_223_464
#: The account of the first start.
FIRST = "admin"


@dataclass(frozen=True, slots=True)
class AccountPassword:
    """The hash of the password of an account."""

    id: int
    password_hash: str


@dataclass(frozen=True, slots=True)
class Account:
    """An account with its rights: `role` on everything, `tags` on the DAGs with a tag."""

    id: int
    name: str
    role: str | None
    tags: Mapping[str, str] = field(default_factory=dict)


def create(connection: Connection, name: str, password: str, *, role: str | None, tags: Mapping[str, str] | None = None) -> Account:
    """Create an account. ConflictError if the name is taken, PacelineError for a bad name, password or role."""
    tags = dict(tags or {})
    _check(name, role, tags)
    account_id = connection.exec_driver_sql(
        "insert into account (name, password_hash, role) values (%s, %s, %s) on conflict do nothing returning id",
        (name, hashed(password), role),
    ).scalar_one_or_none()
    if account_id is None:
        raise ConflictError(f"There is an account {name!r} already: choose another name.")
    for tag, of_tag in sorted(tags.items()):
        connection.exec_driver_sql("insert into account_tag (account_id, tag, role) values (%s, %s, %s)", (account_id, tag, of_tag))
    return Account(account_id, name, role, tags)


def create_first(connection: Connection) -> str | None:
    """Create the account `admin` if there is no account, and return its password; None if there is one."""
    connection.exec_driver_sql("select pg_advisory_xact_lock(%s)", (FIRST_ACCOUNT_LOCK,))
    if connection.exec_driver_sql("select exists (select from account)").scalar_one():
        return None
    password = generated()
    create(connection, FIRST, password, role="admin")
    return password


def accounts(connection: Connection) -> list[dict[str, Any]]:
    """Every account with its rights and its number of sessions and tokens, by name."""
    found = connection.exec_driver_sql(
        """
        select a.name, a.role, a.created_at, a.password_at,
               coalesce((select jsonb_object_agg(t.tag, t.role) from account_tag t where t.account_id = a.id), '{}') as tags,
               (select count(*) from account_key k where k.account_id = a.id and k.kind <> 'token'
                  and k.expires_at > clock_timestamp()) as sessions,
               (select count(*) from account_key k where k.account_id = a.id and k.kind = 'token'
                  and k.expires_at > clock_timestamp()) as tokens
          from account a order by lower(a.name)
        """
    )
    return rows.dicts(found)


def password_of(connection: Connection, name: str) -> AccountPassword | None:
    """The password of an account; None if no account has this name."""
    return rows.first(
        AccountPassword,
        connection.exec_driver_sql("select id, password_hash from account where lower(name) = lower(%s)", (name,)),
    )


def set_password(connection: Connection, name: str, password: str) -> None:
    """Change a password and end all sessions of the account. API tokens remain. NotFoundError."""
    account_id = connection.exec_driver_sql(
        "update account set password_hash = %s, password_at = clock_timestamp() where lower(name) = lower(%s) returning id",
        (hashed(password), name),
    ).scalar_one_or_none()
    if account_id is None:
        raise _missing(name)
    connection.exec_driver_sql("delete from account_key where account_id = %s and kind <> 'token'", (account_id,))


def delete(connection: Connection, name: str) -> None:
    """Delete an account with its sessions and tokens. NotFoundError; ConflictError for the last administrator."""
    # Two deletions at once must not each spare the administrator that the other deletes.
    administrators = connection.exec_driver_sql("select name from account where role = 'admin' order by id for update").scalars()
    if [administrator.lower() for administrator in administrators] == [name.lower()]:
        raise ConflictError(f"{name!r} is the last administrator: create another one first.")
    if connection.exec_driver_sql("delete from account where lower(name) = lower(%s) returning id", (name,)).first() is None:
        raise _missing(name)


def account_id(connection: Connection, name: str) -> int:
    """The number of an account. NotFoundError."""
    found: int | None = connection.exec_driver_sql(
        "select id from account where lower(name) = lower(%s)", (name,)
    ).scalar_one_or_none()
    if found is None:
        raise _missing(name)
    return found


def of_subject(connection: Connection, subject: str, name: str, role: str | None, *, default_role: str | None) -> int:
    """The account of a user of the OpenID Connect provider; it is created at the first login, with `name`.

    `role` replaces its role; with None it keeps its role, or gets `default_role` if it is new. ConflictError if another account has
    the name.
    """
    known: int | None = connection.exec_driver_sql(
        "update account set role = coalesce(%s, role) where subject = %s returning id", (role, subject)
    ).scalar_one_or_none()
    if known is not None:
        return known
    name = re.sub(r"[/:\x00-\x1f\x7f]", "-", name.strip())[:100].strip()
    _check(name, role or default_role, {})
    new: int | None = connection.exec_driver_sql(
        "insert into account (name, password_hash, role, subject) values (%s, '', %s, %s) on conflict do nothing returning id",
        (name, role or default_role, subject),
    ).scalar_one_or_none()
    if new is None:
        raise ConflictError(f"There is an account {name!r} with a password already: ask an administrator to delete or rename it.")
    return new


def revoke_subject(connection: Connection, subject: str) -> None:
    """Take all rights, sessions and API tokens from the account of a user of the OpenID Connect provider, if there is one."""
    account_id = connection.exec_driver_sql(
        "update account set role = null where subject = %s returning id", (subject,)
    ).scalar_one_or_none()
    connection.exec_driver_sql("delete from account_key where account_id = %s", (account_id,))
    connection.exec_driver_sql("delete from account_tag where account_id = %s", (account_id,))


def administrator(connection: Connection) -> int:
    """The number of the oldest account with the role admin."""
    found: int = connection.exec_driver_sql("select id from account where role = 'admin' order by id limit 1").scalar_one()
    return found


def _check(name: str, role: str | None, tags: Mapping[str, str]) -> None:
    if not NAME.fullmatch(name):
        raise PacelineError("An account name has 1 to 100 characters, without slashes, colons and control characters.")
    for given in (*([] if role is None else [role]), *tags.values()):
        if given not in ROLES:
            raise PacelineError(f"{given!r} is not a role: choose {', '.join(ROLES)}.")
    if role is None and not tags:
        raise PacelineError("An account needs a role, or a right by tag.")


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"There is no account {name!r}: `paceline users list` shows all.")
