"""Access to the catalog: what a program needs to use it, who sends a request, and which tasks and accounts may use a namespace.

A namespace is open unless it, or a namespace above it, has the property `paceline.writers` or `paceline.readers`: a list, separated
by commas, of `dag:<id>`, `tag:<tag of a DAG>` and `bundle:<name>`, or `*` for all tasks. Writers may read too.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from scheduler.store.tables.namespaces import READERS, WRITERS
from scheduler.store.tables.pointers import Pinned

PREFIX = "paceline."
#: How pyiceberg repeats requests to S3: see S3Retries.
S3_RETRIES = {"s3.retry-strategy-impl": "scheduler.catalog.files.S3Retries"}


@dataclass(frozen=True, slots=True)
class Access:
    """The address of a catalog and the token with which it is used: that of a try, or of an account."""

    #: The address of the REST protocol, such as http://127.0.0.1:8181.
    uri: str
    token: str = field(repr=False)
    #: The folder of the tables, as a URL.
    warehouse: str
    #: The name of the catalog in SQL.
    catalog: str
    #: Properties of pyiceberg for the storage.
    storage: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def properties(self) -> dict[str, str]:
        """What `pyiceberg.catalog.load_catalog` needs."""
        where = {"type": "rest", "uri": self.uri, "token": self.token, "warehouse": self.warehouse}
        return {**where, **S3_RETRIES, **self.storage}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: a running try, or a person with what the account may do."""

    name: str
    attempt: Pinned | None = None
    address: str = ""
    may_write: bool = False
    #: Whether the caller may make a table of any metadata file in the warehouse, and say who uses a namespace.
    is_admin: bool = False
    #: The digest of the request, if it has an idempotency key: it is done once.
    request: bytes | None = None
    #: Whether the caller may read a namespace with these properties or, with True, write to it; None for a try.
    may_use: Callable[[dict[str, str], bool], bool] | None = None

    def own(self, namespace: str) -> str:
        """The namespace in which the caller writes what it calls this namespace: that of a reproduction is its own."""
        return namespace if self.attempt is None else self.attempt.own(namespace)

    @property
    def reproduces(self) -> bool:
        """Whether it is a try of a reproduction."""
        return self.attempt is not None and self.attempt.scratch is not None


#: In a list: all tasks.
ALL = "*"


def restricts(properties: Mapping[str, str]) -> bool:
    """Whether a namespace with these properties is not open to all."""
    return WRITERS in properties or READERS in properties


def listed(properties: Mapping[str, str], *, writes: bool) -> set[str]:
    """Those that may write to a restricted namespace, or read it."""
    lists = [properties.get(WRITERS, ""), *([] if writes else [properties.get(READERS, "")])]
    return {name.strip() for text in lists for name in text.split(",") if name.strip()}


def allow(properties: Mapping[str, str], names: Collection[str], *, writes: bool) -> bool:
    """Whether a task with these names may use a namespace."""
    return not restricts(properties) or not listed(properties, writes=writes).isdisjoint({ALL, *names})
