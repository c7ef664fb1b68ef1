"""promote: starts queued runs, schedules task instances that are due, decides the next tasks of each run, closes ended runs."""

from collections.abc import Iterable

from sqlalchemy import Engine

from scheduler.services.examination import Examiner
from scheduler.services.service import AT_ONCE, HELD_PAUSE_S, Result, Service
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.runs import instances, runs

#: The number of attempts, with pauses of HELD_PAUSE_S, to examine a hinted run that another scheduler has locked. That scheduler
#: may have read the run before the change that caused the hint. After the last attempt, the run is left to the sweep.
HINT_PASSES = 20


class Promote(Service):
    """Examines the runs of its wakeups. Schedulers share the work, see Examiner."""

    name = "promote"
    pending = instances.PENDING
    wakeups = frozenset({"run", "next"})

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        super().__init__(engine, settings)
        self.examiner = Examiner(engine, settings, versions)
        #: Runs to examine, with the number of passes left to lock each.
        self.hints: dict[int, int] = {}
        #: Runs with new ends of tasks for which later runs may wait.
        self._passed: set[int] = set()

    def woken(self, kind: str, key: str) -> None:
        if kind == "run":
            self.hint([int(key)])
        else:
            self._passed.add(int(key))

    def hint(self, run_ids: Iterable[int]) -> None:
        """Examine these runs in the next pass."""
        self.hints |= dict.fromkeys(run_ids, HINT_PASSES)

    def run_once(self) -> Result:
        if self._passed:
            passed, self._passed = self._passed, set()
            self.hint(transact(self._engine, runs.following, passed))
        hinted, self.hints = self.hints, {}
        examined = self.examiner.examine(hinted)
        self.hint(sorted(examined.unfinished))
        wake, log = self.examiner.follow_up(examined)
        self.hints |= {run_id: hinted[run_id] - 1 for run_id in examined.held_elsewhere if hinted[run_id] > 1}
        again_in_s = None
        if examined.closed or examined.unfinished or len(examined.started) >= runs.MOST_STARTS:
            again_in_s = AT_ONCE  # a closed run may let a waiting one start, and more may wait than one pass starts
        elif self.hints:
            again_in_s = HELD_PAUSE_S
        elif examined.next_due_s is not None and examined.next_due_s < self.interval_s:
            again_in_s = max(examined.next_due_s, HELD_PAUSE_S)
        return Result(services=wake, again_in_s=again_in_s, log=log)
