"""Actor: the person who acts, by a request to the REST API or by a command."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Engine

from paceline.exceptions import PacelineError
from scheduler.messaging.message import Message
from scheduler.messaging.wakeups import Action
from scheduler.settings import Settings
from scheduler.store.accounts import audit
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import rehearse, transact
from scheduler.store.runs.selection import Change

P = ParamSpec("P")
R = TypeVar("R")


class ForbiddenError(PacelineError):
    """This person may not do that."""


class UnprocessableError(PacelineError):
    """The request can be read, but its content cannot be used."""


class Announce(Protocol):
    """Wakes schedulers after an action, which changed these runs. Without Redis, their next poll a second later does the same."""

    def __call__(self, action: Action, runs: Collection[int] = ()) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A person who acts, with the transactions and wakeups of the request or command."""

    settings: Settings
    #: Its changes of states are recorded with the name of the person.
    engine: Engine
    announce: Announce
    #: Sends the messages of first tasks, which this process may queue itself. Without it, schedulers start every run.
    publish: Callable[[Sequence[Message]], None] | None = None
    versions: Versions = field(default_factory=Versions)
    #: The name of the person, such as api:ada or cli:root, and that in the records of runs and events that the person makes.
    name: str
    made_by: str
    #: The account and IP address of a request, for the audit log.
    account: str | None = None
    address: str | None = None
    #: Checks that the first transaction begins with. See api/access.
    checks: list[Callable[[Connection], None]] = field(default_factory=list)

    def write(self, work: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return `work(connection, ...)`, run in a transaction."""
        return self.write_or_rehearse(False, work, *args, **kwargs)

    def write_or_rehearse(
        self, dry_run: bool, work: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """As `write`; a dry run undoes all changes."""

        def checked(connection: Connection) -> R:
            for check in self.checks:
                check(connection)
            return work(connection, *args, **kwargs)

        result = (rehearse if dry_run else transact)(self.engine, checked)
        self.checks.clear()
        return result

    def record(self, connection: Connection, event: str, extra: Mapping[str, Any], **thing: str) -> None:
        """Add an entry to the audit log, in the transaction of the change. A route that leads here declares the `event`.

        `thing` has the dag_id and the run_id of what was changed.
        """
        audit.add(connection, event, status=200, account=self.account or self.name, address=self.address, extra=extra, **thing)

    def announce_changes(self, changes: Collection[Change]) -> None:
        """Wake schedulers after changes of task instances, if there are any."""
        if changes:
            self.announce("instances changed", {change.dag_run_id for change in changes})
