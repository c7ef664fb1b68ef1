"""The installation: workers that drain, and the accounts of the web UI with their passwords and API tokens."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection

from scheduler.actions.actor import Actor
from scheduler.store.accounts import accounts, logins
from scheduler.store.upkeep import processes

R = TypeVar("R")


def drain(by: Actor, worker: str) -> list[str]:
    """Ask workers to take no more tasks, and to end when their running tasks have ended. `worker` is a name or an ID.

    Returns their IDs. NotFoundError; ConflictError if they have stopped.
    """
    return by.write(processes.drain, worker, by.name)


def create_account(by: Actor, name: str, password: str, *, role: str | None, tags: Mapping[str, str]) -> None:
    """Create an account with a role on everything, and roles on the DAGs with these tags."""
    _recorded(by, "users.create", name, lambda c: accounts.create(c, name, password, role=role, tags=dict(tags)))


def set_password(by: Actor, name: str, password: str) -> None:
    """Change a password. All sessions of the account end."""
    _recorded(by, "users.password", name, lambda c: accounts.set_password(c, name, password))


def create_token(by: Actor, name: str, *, lasts_s: float, label: str) -> tuple[str, datetime]:
    """Create an API token of an account, and return it with the time at which it expires."""
    return _recorded(
        by, "users.token", name, lambda c: logins.issue(c, accounts.account_id(c, name), "token", lasts_s=lasts_s, name=label)
    )


def revoke_tokens(by: Actor, name: str, label: str) -> None:
    """Delete the API tokens of an account with this label."""
    _recorded(by, "users.revoke_token", name, lambda c: logins.revoke(c, accounts.account_id(c, name), label))


def delete_account(by: Actor, name: str) -> None:
    """Delete an account with its sessions and tokens."""
    _recorded(by, "users.delete", name, lambda c: accounts.delete(c, name))


def _recorded(by: Actor, event: str, name: str, work: Callable[[Connection], R]) -> R:
    """Make a change and its entry in the audit log in one transaction."""

    def both(connection: Connection) -> R:
        result = work(connection)
        by.record(connection, event, {"name": name})
        return result

    return by.write(both)
