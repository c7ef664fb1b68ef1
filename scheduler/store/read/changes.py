"""The changes since the last poll, for all open pages at once: one query in each poll, and one more if something changed.

Task instances that are queued or running write no event of their own, so they are compared with those of the last poll. All
other changes are events. No change is missed: an event can become visible after a later one, when its transaction ends, so a look
starts from the first moment at which a transaction that is still open could have written one.

Each statement sees what was committed before it, and the open transactions are read first. A transaction that commits while they
are read is then either listed as open or visible to the next statement. A change can be reported twice, which does no harm.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection

from paceline.states import HOLDS_SLOTS
from scheduler.store.db import rows
from scheduler.store.db.clock import OPEN_TRANSACTIONS
from scheduler.store.read.listing import Row

#: A transaction that stays open for longer is not waited for.
LONGEST = timedelta(minutes=1)
#: The moment, before the open transactions are read; transactions that write; what shows that a DAG, a pool or an import error
#: changed.
LOOK = f"""
select statement_timestamp() as now, {OPEN_TRANSACTIONS} as open,
       (select count(*) || '/' || coalesce(max(version_id), 0) || '/' || count(*) filter (where is_active) from dag) || '/'
           || (select count(*) from dag_schedule where is_paused) || '/' || (select count(*) from import_error) as dags
"""
EVENTS = "select dag_run_id, task_instance_id, at, to_state from event where at > %s"
IN_FLIGHT = f"select id, dag_run_id, state, try_number from task_instance where state in {HOLDS_SLOTS.sql}"
RUNS = """
select r.id, r.dag_id, r.run_id as dag_run_id, r.state, coalesce(v.data->'tags', '[]') as tags
  from dag_run r left join dag d on d.dag_id = r.dag_id left join dag_version v on v.id = d.version_id where r.id = any(%s)
"""
INSTANCES = """
select dag_run_id as run, task_id, map_index, state, try_number from task_instance where id = any(%s)
"""
MOST_INSTANCES = 5000


@dataclass(frozen=True, slots=True)
class Event:
    """An event. Two with the same values are the same one."""

    dag_run_id: int
    task_instance_id: int | None
    at: datetime
    to_state: str | None


@dataclass(frozen=True, slots=True)
class ActiveInstance:
    """A task instance with a worker or on its way to one."""

    id: int
    dag_run_id: int
    state: str
    try_number: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Runs that changed, or of which a task instance did, by number; and these task instances by run."""

    at: datetime
    runs: dict[int, Row]
    instances: dict[int, list[Row]]
    #: Whether there were more task instances than are listed.
    more: bool
    #: Whether a DAG came, went, or was paused, or a file cannot be read any more.
    dags: bool


@dataclass(slots=True)
class Watch:
    """The state between two looks."""

    since: datetime | None = None
    dags: str = ""
    #: By open transaction: the moment of the last look that did not see it.
    open: dict[str, datetime] = field(default_factory=dict)
    last: datetime | None = None
    seen: set[Event] = field(default_factory=set)
    flights: dict[int, ActiveInstance] = field(default_factory=dict)

    def look(self, connection: Connection, *, with_instances: bool = True) -> Changes | None:
        """The changes since the last look; None if nothing changed, and at the first look."""
        now, open_, dags = connection.exec_driver_sql(LOOK).one()
        flights = {flight.id: flight for flight in rows.of_result(ActiveInstance, connection.exec_driver_sql(IN_FLIGHT))}
        found = [] if self.since is None else rows.of_result(Event, connection.exec_driver_sql(EVENTS, (self.since,)))
        is_first, same_dags = self.since is None, self.dags == dags
        changed = {ti: flight.dag_run_id for ti, flight in flights.items() if self.flights.get(ti) != flight}
        changed |= {ti: flight.dag_run_id for ti, flight in self.flights.items() if ti not in flights}
        new = [event for event in found if event not in self.seen]
        runs = {event.dag_run_id for event in new} | set(changed.values())
        changed |= {event.task_instance_id: event.dag_run_id for event in new if event.task_instance_id is not None}
        self.flights, self.dags = flights, dags
        self._move_on(now, open_, found)
        if is_first or (not runs and same_dags):
            return None
        listed = sorted(changed)[:MOST_INSTANCES] if with_instances else []
        return Changes(
            now, _runs(connection, runs), _instances(connection, listed), more=len(changed) > len(listed), dags=not same_dags
        )

    def _move_on(self, now: datetime, open_: Collection[str], found: list[Event]) -> None:
        before = self.last or now - LONGEST
        self.open = {one: self.open.get(one, before) for one in open_}
        self.since = max(min([now, *self.open.values()]), now - LONGEST)
        self.last = now
        self.seen = {event for event in found if event.at > self.since}


def _runs(connection: Connection, runs: Collection[int]) -> dict[int, Row]:
    return {row["id"]: row for row in rows.dicts(connection.exec_driver_sql(RUNS, (list(runs),)))} if runs else {}


def _instances(connection: Connection, listed: Collection[int]) -> dict[int, list[Row]]:
    """Task instances by run."""
    instances: dict[int, list[Row]] = {}
    for row in rows.dicts(connection.exec_driver_sql(INSTANCES, (list(listed),))) if listed else ():
        instances.setdefault(row.pop("run"), []).append(row)
    return instances
