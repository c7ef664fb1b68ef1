"""sweep: examine runs that nobody hinted at: those that could go on undecided, and the longest unexamined ones.

What a worker follows, or sends a wake-up for, is decided at once. Left over is what nobody could see in time (two last siblings of
a join, see docs/explanation/locks.md) and what a lost wake-up was about. Both begin with an ending, so each sweep looks at the
runs in which a task instance ended since the sweep before. Finding them takes no locks and changes nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from scheduler.deciding.evaluate import evaluate, run_state
from scheduler.exceptions import UnreadableVersionError
from scheduler.serialized.dag import SerializedDag
from scheduler.services.promote import Promote, facts_of
from scheduler.services.service import Result, Service
from scheduler.settings import Settings
from scheduler.states import TaskState
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transaction
from scheduler.store.runs import instances, runs

#: An ending shows when its transaction commits. One that takes longer is found by the look at the longest unexamined runs.
LATE = timedelta(seconds=5)
#: Task instances looked at in one sweep; the runs beyond it come first in the next.
MOST_INSTANCES = 20_000
#: Runs and tasks looked at in one transaction.
RUNS_AT_ONCE, TASKS_AT_ONCE = 100, 2_000


class Sweep(Service):
    """One object a scheduler: it remembers when it looked, and which runs are still to be looked at."""

    name = "sweep"
    pending = runs.RUNNING

    def __init__(self, engine: Engine, settings: Settings, versions: Versions, promote: Promote) -> None:
        self._engine = engine
        self._versions = versions
        self._promote = promote
        self._looked_at: datetime | None = None
        self._line: dict[int, None] = {}
        self.interval_s = settings.scheduler.scheduler_idle_sleep_time

    def run_once(self) -> Result:
        hinted = self._promote.hints
        promoted = self._promote.examine(also=self.find(without=hinted), without=hinted)
        wake, log = self._promote.follow_up(promoted)
        if promoted.closed or promoted.started:
            wake.append("promote")
        return Result(wake=wake, runs=sorted(promoted.unfinished), log=log)

    def find(self, *, without: Collection[int] = ()) -> list[int]:
        """Runs that ask for something now. Those of `without` are examined anyway."""
        since = None if self._looked_at is None else self._looked_at - LATE
        self._looked_at, touched = _touched(self._engine, since)
        self._line |= dict.fromkeys(touched)
        for run in without:
            self._line.pop(run, None)
        asking: list[int] = []
        looked = 0
        while self._line and looked < MOST_INSTANCES:
            look = _look(self._engine, self._versions, list(self._line)[:RUNS_AT_ONCE])
            for run in look.done:
                del self._line[run]
            asking += look.asking
            looked += look.instances
        return asking


@dataclass(frozen=True, slots=True)
class _Looked:
    """Runs that were looked at or have ended, which of them ask for something, and how many task instances they have."""

    done: list[int]
    asking: list[int]
    instances: int


@transaction
def _touched(connection: Connection, since: datetime | None) -> tuple[datetime, list[int]]:
    return runs.touched(connection, since)


@transaction
def _look(connection: Connection, versions: Versions, line: Sequence[int]) -> _Looked:
    """Look at the first of these runs, as many as have TASKS_AT_ONCE tasks together."""
    version_of = runs.versions_of(connection, line)
    done, asking = [run for run in line if run not in version_of], []
    dags: dict[int, SerializedDag] = {}
    room = TASKS_AT_ONCE
    for run in (run for run in line if run in version_of):
        try:
            dags[run] = versions.dag(connection, version_of[run])
        except UnreadableVersionError:
            asking.append(run)  # examining it says why
            done.append(run)
            continue
        room -= len(dags[run].tasks)
        if room <= 0:
            break
    states = instances.states_of(connection, dags) if dags else {}
    asking += [run for run, dag in dags.items() if _asks(connection, run, dag, states.get(run, {}))]
    return _Looked([*done, *dags], asking, sum(len(of_task) for of_run in states.values() for of_task in of_run.values()))


def _asks(connection: Connection, run: int, dag: SerializedDag, states: dict[int, dict[int, TaskState]]) -> bool:
    """Whether something is to be decided or expanded, or the run has ended."""
    try:
        known = facts_of(connection, dag, run)
        evaluation = evaluate(dag, states, known)
        waits_for_past = any(no in known.past for no, _ in evaluation.waiting)
        return (
            bool(evaluation.decisions or evaluation.expand) or run_state(dag, states, waiting_for_past=waits_for_past) is not None
        )
    except DBAPIError:
        raise
    except Exception:
        return True  # examining it says why
