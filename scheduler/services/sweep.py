"""sweep: examines runs without a wakeup: those with something left to decide, and those unexamined for longest.

Workers decide most tasks at once, or send a wakeup. Two cases remain: a join whose last two upstream tasks end at the same
time (see docs/explanation/locks.md), and a lost wakeup. Both start with the end of a task, so each sweep checks the runs in
which a task instance has ended since the last sweep. The check takes no locks and changes nothing.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.exceptions import UnreadableVersionError
from paceline.states import TaskState
from scheduler.deciding.evaluate import evaluate, run_state
from scheduler.serialized.dag import SerializedDag
from scheduler.services.promote import Examiner
from scheduler.services.service import Result, Service
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.runs import run_facts, runs

#: The end of a task becomes visible at commit. If the commit takes longer than this, only the oldest-first examination finds it.
LATE = timedelta(seconds=5)
#: Task instances checked in one sweep; further runs come first in the next one.
MOST_INSTANCES = 20_000
#: Runs and tasks checked in one transaction.
RUNS_AT_ONCE, TASKS_AT_ONCE = 100, 2_000


class Sweep(Service):
    """Finds and examines runs. It stores the time of its last check, and the runs that are left to check."""

    name = "sweep"
    pending = runs.PENDING_SWEEP
    is_shared = True

    def __init__(self, engine: Engine, settings: Settings, versions: Versions, hinted: Callable[[], Collection[int]]) -> None:
        """`hinted` returns the runs that promote examines in its next pass."""
        super().__init__(engine, settings)
        self._versions = versions
        self._hinted = hinted
        self._examiner = Examiner(engine, settings, versions)
        self._checked_at: datetime | None = None
        self._unchecked: dict[int, None] = {}

    def run_once(self) -> Result:
        hinted = self._hinted()
        examined = self._examiner.examine(also=self.find(without=hinted), without=hinted)
        starters, log = self._examiner.follow_up(examined)
        wake = [*(["queue"] if examined.ready else []), *(["promote"] if examined.started else [])]
        return Result(services=wake, if_pending=starters, runs=sorted(examined.unfinished), log=log)

    def find(self, *, without: Collection[int] = ()) -> list[int]:
        """Runs with something to decide now, except those in `without`, which are examined anyway."""
        since = None if self._checked_at is None else self._checked_at - LATE
        self._checked_at, touched = transact(self._engine, runs.touched, since)
        self._unchecked |= dict.fromkeys(touched)
        for run in without:
            self._unchecked.pop(run, None)
        open_runs: list[int] = []
        instances_checked = 0
        while self._unchecked and instances_checked < MOST_INSTANCES:
            checked = transact(self._engine, _check, self._versions, list(self._unchecked)[:RUNS_AT_ONCE])
            for run in checked.done:
                del self._unchecked[run]
            open_runs += checked.open_runs
            instances_checked += checked.instances
        return open_runs


@dataclass(frozen=True, slots=True)
class _Checked:
    """The runs that were checked or have ended, those with something to decide, and the number of their task instances."""

    done: list[int]
    open_runs: list[int]
    instances: int


def _check(connection: Connection, versions: Versions, run_ids: Sequence[int]) -> _Checked:
    """Check the first of these runs, up to TASKS_AT_ONCE tasks in total."""
    version_of = runs.versions_of(connection, run_ids)
    done, open_runs = [run for run in run_ids if run not in version_of], []
    dags: dict[int, SerializedDag] = {}
    left = TASKS_AT_ONCE
    for run in (run for run in run_ids if run in version_of):
        try:
            dags[run] = versions.dag(connection, version_of[run])
        except UnreadableVersionError:
            open_runs.append(run)  # its examination gives the reason
            done.append(run)
            continue
        left -= len(dags[run].tasks)
        if left <= 0:
            break
    states = run_facts.states_of(connection, dags) if dags else {}
    open_runs += [run for run, dag in dags.items() if _is_open(connection, run, dag, states.get(run, {}))]
    return _Checked([*done, *dags], open_runs, sum(len(of_task) for of_run in states.values() for of_task in of_run.values()))


def _is_open(connection: Connection, run: int, dag: SerializedDag, states: dict[int, dict[int, TaskState]]) -> bool:
    """Whether a task is to be decided or expanded, or the run can be closed."""
    try:
        known = run_facts.read(connection, dag, run)
        evaluation = evaluate(dag, states, known)
        if evaluation.decisions or evaluation.expand:
            return True
        return run_state(dag, states, waiting_for_past=evaluation.waits_for_past(known)) is not None
    except DBAPIError:
        raise
    except Exception:
        return True  # its examination gives the reason
