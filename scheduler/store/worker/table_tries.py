"""What a pool process stores about the tables of its try, and the publication in its report."""

from dataclasses import dataclass
from typing import Any

from psycopg2.extras import Json

from scheduler.store.db import fencing
from scheduler.store.tables import publish as publications
from scheduler.store.tables import tries
from scheduler.store.tables.publish import HOLD_FOR_TRY, PUBLISH_TRY, Row
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.external_jobs import Ask
from scheduler.store.worker.hot_path import UndoneError, WorkerConnection


class NotPublishedError(UndoneError):
    """What the try has written cannot be published, so the try has not succeeded."""


class BatchOpenError(NotPublishedError):
    """A batch of a streaming query has written, and was not published. Its checkpoint lets the next try repeat it."""

    def __init__(self) -> None:
        super().__init__(
            "A batch of a streaming query was not published: it failed, or the query was stopped before the batch had ended. "
            "What this try has written since its last publication is dropped: the next try repeats the batch."
        )


class TablesChangedError(NotPublishedError):
    """Others have published a table since the try read it."""

    def __init__(self, moved: list[Row], reason: str = "") -> None:
        tables = "; ".join(f"{row.namespace}.{row.name} was changed by {row.writer}" for row in moved)
        more = f" ({reason})" if reason else ""
        super().__init__(f"Tables have changed since this try began: {tables}{more}. Nothing was published: run it again.")
        self.moved = moved


@dataclass(frozen=True, slots=True)
class Movable:
    """A table that the try has written and that has changed since: what it was written on, and what is current."""

    namespace: str
    name: str
    base_location: str | None
    location: str | None
    updates: list[Any] | None
    current: str | None


def give_token(ask: Ask, claim: Claim) -> str:
    """Give the claimed try a new token for the catalog. Its first one also pins it to the last publication. StaleTryError."""
    token = tries.new_token()
    _write(ask, tries.GIVE, claim, (tries.hashed(token), claim.id, claim.try_number, claim.dispatch_id))
    return token


def continues(ask: Ask, claim: Claim) -> bool:
    """Whether an earlier dispatch of the claimed try was given a token. Then this dispatch publishes its tables. StaleTryError."""
    return bool(_write(ask, tries.CONTINUE, claim, (claim.dispatch_id, claim.id, claim.try_number)))


def follow(ask: Ask, claim: Claim) -> None:
    """Let the claimed try read what is current from now on, if it was given a token. StaleTryError."""
    _write(ask, tries.FOLLOW, claim, (claim.id, claim.try_number))


def take_over(ask: Ask, claim: Claim) -> bool:
    """Let the claimed try continue with the token of the last one, which its Spark application still uses. StaleTryError."""
    return bool(_write(ask, tries.TAKE_OVER, claim, (claim.dispatch_id, claim.try_number, claim.id)))


def publish(connection: WorkerConnection, claim: Claim, catalog: str) -> int | None:
    """Publish what the claimed try has written, in the transaction of its report. NotPublishedError undoes that.

    Returns the number of the publication; None if the try has written nothing, or an earlier attempt of the report was stored.
    """
    parameters = {
        "ti_id": claim.id, "dispatch_id": claim.dispatch_id, "catalog": catalog, "by": f"{claim.dag_id}.{claim.task_id}",
        "dag_id": claim.dag_id, "run_id": claim.run_id, "task_id": claim.task_id, "map_index": claim.map_index,
        "try_number": claim.try_number,
    }  # fmt: skip
    answer = connection.objects(Row, f"{HOLD_FOR_TRY}; {PUBLISH_TRY}", parameters)
    if answer[0].in_batch:
        raise BatchOpenError
    if moved := publications.moved(answer):
        raise TablesChangedError(moved)
    return answer[0].publication


def movable(connection: WorkerConnection, claim: Claim, catalog: str) -> list[Movable]:
    """The tables that stand in the way of the publication of the claimed try."""
    return connection.objects(Movable, tries.MOVABLE, (catalog, claim.id, claim.dispatch_id))


def move(connection: WorkerConnection, claim: Claim, table: Movable, location: str, facts: dict[str, Any]) -> None:
    """Put what the try has written onto the current table. StaleTryError."""
    which = (claim.id, claim.dispatch_id, table.namespace, table.name, table.location)
    connection.write(claim.writer, tries.MOVE, (table.current, location, location, Json(facts), *which))


def give_up(connection: WorkerConnection, claim: Claim, table: Movable) -> None:
    """Let the publication of the claimed try leave a table as it is. gc deletes what the try has written. StaleTryError."""
    which = (claim.id, claim.dispatch_id, table.namespace, table.name, table.location)
    connection.write(claim.writer, tries.GIVE_UP, (table.current, table.current, *which))


def _write(ask: Ask, statement: str, claim: Claim, parameters: tuple[Any, ...]) -> int:
    answer = ask(statement, (*claim.writer.key, *parameters))
    if not answer:
        raise fencing.stale(claim.writer)
    (written,) = answer[0].values()
    return int(written)
