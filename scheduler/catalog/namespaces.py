"""The namespaces of the catalog, for a running try or for a person, and which of them a request may use.

A change of a namespace happens at once: it stays if the try fails.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from scheduler.catalog import access, files
from scheduler.catalog.access import Caller
from scheduler.catalog.errors import CatalogError, ExistsError, ForbiddenError, NoSuchNamespaceError, NotEmptyError
from scheduler.store.tables import namespaces, pointers, publish, tries


class Namespaces:
    """The namespaces of one catalog. `transact` calls a function in a transaction, and repeats it until PostgreSQL answers."""

    def __init__(self, catalog: str, transact: Callable[..., Any]) -> None:
        self._catalog, self._transact = catalog, transact

    def listed(self, caller: Caller, parent: str | None) -> list[str]:
        """The namespaces directly below another one, or at the top."""
        if parent is not None:
            self.properties(caller, parent)
        depth = 0 if parent is None else parent.count(".") + 1
        every: list[str] = self._transact(namespaces.visible, self._catalog, caller.attempt)
        found = {".".join(name.split(".")[: depth + 1]) for name in every if parent is None or name.startswith(f"{parent}.")}
        return sorted(found)

    def create(self, caller: Caller, name: str, properties: Mapping[str, str]) -> None:
        """Create a namespace, at once: it stays if the try fails."""
        self._check_writes(caller)
        files.check_name("namespace", *name.split("."))
        if "." in name:
            self.check_use(caller, name.rpartition(".")[0], writes=True)
        is_there = caller.reproduces and self._transact(namespaces.properties, self._catalog, name) is not None
        if is_there or not self._transact(_once, caller, namespaces.create, self._catalog, caller.own(name), properties):
            raise ExistsError(f"Namespace already exists: {name}")

    def properties(self, caller: Caller, name: str, *, writes: bool = False) -> dict[str, str]:
        """The properties of a namespace that the caller may read; with `writes`, also change."""
        found: dict[str, str] | None = self._transact(namespaces.properties, self._catalog, name)
        if caller.reproduces and (own := self._transact(namespaces.properties, self._catalog, caller.own(name))) is not None:
            found = {**(found or {}), **own}
        if found is None and (
            caller.attempt is None or not self._transact(pointers.names, self._catalog, caller.attempt, name, views=False)
        ):
            every: list[str] = self._transact(namespaces.visible, self._catalog, caller.attempt)
            if not any(one.startswith(f"{name}.") for one in every):
                raise NoSuchNamespaceError(f"Namespace does not exist: {name}")
        found = found or {}
        if writes:
            self._check_writes(caller)
        self.check_use(caller, name, writes=writes)
        return found

    def update(
        self, caller: Caller, name: str, updates: Mapping[str, str], removals: Sequence[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Change the properties of a namespace. Returns those that were updated, removed and missing."""
        before = self.properties(caller, name, writes=True)
        if not caller.is_admin and any(key.startswith(access.PREFIX) for key in (*updates, *removals)):
            raise ForbiddenError(
                f"An administrator says who uses the namespace {name} ({namespaces.WRITERS}, {namespaces.READERS})."
            )
        if both := set(updates) & set(removals):
            raise CatalogError(f"The property {min(both)} is both set and removed: choose one.")
        if self.is_done(caller):
            return sorted(updates), sorted(set(removals)), []
        self._transact(_once, caller, namespaces.update, self._catalog, caller.own(name), updates, removals)
        return sorted(updates), sorted(set(removals) & set(before)), sorted(set(removals) - set(before))

    def drop(self, caller: Caller, name: str) -> None:
        """Delete an empty namespace, at once."""
        if self.is_done(caller):
            return
        self.properties(caller, name, writes=True)
        if caller.reproduces and self._transact(namespaces.properties, self._catalog, caller.own(name)) is None:
            return  # that of everybody stays
        if not self._transact(_once, caller, namespaces.drop, self._catalog, caller.own(name)):
            raise NotEmptyError(f"The namespace {name} is not empty: drop its tables and namespaces first.")

    def _check_writes(self, caller: Caller) -> None:
        if not caller.may_write:
            raise ForbiddenError(f"{caller.name} may only read tables.")

    def check_use(self, caller: Caller, namespace: str, *, writes: bool) -> None:
        """ForbiddenError for a namespace that is restricted, or lies below a restricted one."""
        properties: dict[str, str] = self._transact(namespaces.inherited, self._catalog, namespace)
        if caller.may_use is not None:
            may = caller.may_use(properties, writes)
        elif caller.attempt is None or not access.restricts(properties):
            may = True
        else:
            may = access.allow(properties, self._transact(tries.names_of, caller.attempt), writes=writes)
        if not may:
            raise ForbiddenError(f"{caller.name} may not {'write to' if writes else 'read'} the namespace {namespace}.")

    def is_done(self, caller: Caller) -> bool:
        return caller.request is not None and bool(self._transact(publish.request_is_done, caller.request))


def _once(connection: Connection, caller: Caller, write: Callable[..., Any], *arguments: Any) -> bool:
    """Call `write`, unless the request has been done. False if that refused."""
    if publish.note_request(connection, caller.request) and write(connection, *arguments) is False:
        connection.rollback()
        return False
    return True
