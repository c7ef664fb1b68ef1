"""promote: starts queued runs, schedules task instances that are due, decides the next tasks of each run, closes ended runs.

The examination of runs is shared with sweep, and what follows the end of runs with timeouts.
"""

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.exceptions import UnreadableVersionError
from paceline.states import FINISHED, Decision, RunState, TaskState
from scheduler.deciding import expansion
from scheduler.deciding.evaluate import Evaluation, Facts, evaluate, run_state
from scheduler.process import measures
from scheduler.serialized.dag import SerializedDag
from scheduler.services.service import AT_ONCE, HELD_PAUSE_S, LogLine, Result, Service, is_away, reason_of
from scheduler.settings import Settings
from scheduler.store.dags.dags import pause_if_failing
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import read, step, transact
from scheduler.store.moves import due, expand
from scheduler.store.moves.decide import decide
from scheduler.store.moves.stop import end_rest
from scheduler.store.runs import integrity, run_facts, runs, selection

#: The services that may start a run when another one has ended, if one waits for that. It waits no less for a process that creates
#: it meanwhile: either it commits before the conditions of these services are read, or its wakeup comes after the end.
STARTERS = ("plan", "promote", "backfill")


def after_closing(engine: Engine, closed: Mapping[int, RunState]) -> tuple[tuple[str, ...], list[LogLine]]:
    """Pause the DAGs whose runs keep failing. Returns the services that may now start other runs, and the lines to log."""
    failed = [run_id for run_id, state in closed.items() if state is RunState.FAILED]
    paused = transact(engine, pause_if_failing, failed) if failed else {}
    log = [
        (logging.WARNING, f"DAG {dag_id} is paused: its last {most} runs failed (max_consecutive_failed_dag_runs)")
        for dag_id, most in paused.items()
    ]
    return STARTERS if closed else (), log


#: Task instances moved in one transaction. A run with more is examined again immediately.
MOST_MOVES = 2000
#: Runs examined in one transaction. More would save little, and lock these runs for the queue services of other schedulers.
MOST_RUNS = 20
States = dict[int, dict[int, TaskState]]


@dataclass(frozen=True, slots=True)
class Examined:
    """The result: runs started and closed, and the number of task instances scheduled.

    `held_elsewhere` and `unfinished` are runs to examine again, because another scheduler has them locked or because more is
    to be done. `broken` are the runs that newly cannot be decided, with the reason; `recovered` can be decided again.
    """

    started: list[int]
    closed: dict[int, RunState]
    ready: int
    held_elsewhere: set[int]
    unfinished: set[int]
    broken: dict[int, str]
    recovered: set[int]
    #: Seconds until a retry, poke or timeout of a trigger is due.
    next_due_s: float | None = None
    #: Whether queued runs may start once another transaction, which creates a run, releases their DAG.
    starts_later: bool = False


class Examiner:
    """Examines runs. It locks the runs that it examines, and skips those that another scheduler has locked.

    Small runs share transactions. If one fails, each of its runs is examined alone, so that a run does not stop the others.
    """

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        self._engine = engine
        self._settings = settings
        self._versions = versions

    def examine(
        self, hinted: Collection[int] | None = None, *, also: Collection[int] = (), without: Collection[int] = ()
    ) -> Examined:
        """Examine the hinted runs and those that just started. Without hints this is a sweep: it examines `also` and the
        runs that have been unexamined for longest, except `without`.
        """
        limit = self._settings.scheduler.max_dagruns_per_loop_to_schedule
        waiting = read(self._engine, due.waiting)
        starting = transact(self._engine, runs.start_queued) if waiting.has_queued_runs else runs.Started([], False)
        started = starting.ids
        ready, next_due_s = 0, waiting.due_in_s
        if waiting.is_due:
            ready, next_due_s = transact(self._engine, _due, self._settings.scheduler.max_tis_per_query)
        candidates = {*also, *transact(self._engine, runs.to_examine, limit=limit, without=without)} if hinted is None else hinted
        wanted = sorted({*candidates, *started})
        results = _Results()
        for batch in read(self._engine, _batches, wanted, self._versions) if wanted else []:
            self._examine_batch(batch, results, sweeps=hinted is None)
        examined = results.examined
        missed = set(hinted or ()) - examined.keys() - results.undecided
        return Examined(
            started,
            closed={run: result.closed for run, result in examined.items() if result.closed is not None},
            ready=ready + sum(result.ready for result in examined.values()),
            held_elsewhere=set(transact(self._engine, runs.versions_of, missed)) if missed else set(),
            unfinished={run for run, result in examined.items() if result.more},
            broken=results.broken,
            recovered={run for run, result in examined.items() if result.recovered},
            next_due_s=next_due_s,
            starts_later=starting.held_elsewhere,
        )

    def _examine_batch(self, batch: list[int], results: "_Results", *, sweeps: bool) -> None:
        try:
            results.examined |= transact(self._engine, _examine, batch, self._versions, self._settings, sweeps=sweeps)
        except Exception as error:
            if isinstance(error, DBAPIError) and is_away(error):
                raise
            if len(batch) > 1:
                for run in batch:
                    self._examine_batch([run], results, sweeps=sweeps)
                return
            (run,) = batch
            results.undecided.add(run)
            reason = reason_of(error)
            if transact(self._engine, runs.store_error, run, reason):
                results.broken[run] = reason

    def follow_up(self, examined: Examined) -> tuple[tuple[str, ...], list[LogLine]]:
        """The services that may now start other runs, and the lines to log. A run that cannot be decided is logged once, not at
        each sweep.
        """
        log = [
            *((logging.ERROR, f"DAG run {run_id} cannot be decided: {why}") for run_id, why in examined.broken.items()),
            *((logging.INFO, f"DAG run {run_id} can be decided again") for run_id in examined.recovered),
        ]
        starters, paused = after_closing(self._engine, examined.closed)
        return starters, [*log, *paused]


@dataclass(frozen=True, slots=True)
class _ExaminedRun:
    ready: int
    closed: RunState | None
    more: bool
    recovered: bool


@dataclass(slots=True)
class _Results:
    """The results of the runs that could be locked, the runs that cannot be decided, and which of these are new."""

    examined: dict[int, _ExaminedRun] = field(default_factory=dict)
    undecided: set[int] = field(default_factory=set)
    broken: dict[int, str] = field(default_factory=dict)


@step("due", lambda due: due[0])
def _due(connection: Connection, limit: int) -> tuple[int, float | None]:
    return due.due(connection, limit=limit), due.next_due_s(connection)


def _batches(connection: Connection, ids: Collection[int], versions: Versions) -> list[list[int]]:
    """Batches of runs that share a transaction, in ascending order: small plain runs together, every other run alone."""
    batches: list[list[int]] = []
    left = 0
    for run, version_id in sorted(runs.versions_of(connection, ids).items()):
        try:
            dag = versions.dag(connection, version_id)
        except UnreadableVersionError:
            batches.append([run])  # its examination gives the reason
            left = 0
            continue
        size = max(1, len(dag.tasks)) if dag.is_plain else MOST_MOVES
        if size > left or len(batches[-1]) == MOST_RUNS:
            batches.append([])
            left = MOST_MOVES
        batches[-1].append(run)
        left -= size
    return batches


@step("promote")
def _examine(
    connection: Connection, ids: Sequence[int], versions: Versions, settings: Settings, *, sweeps: bool
) -> dict[int, _ExaminedRun]:
    """Lock, read, decide and write some runs in one short transaction. Returns the results of those that could be locked."""
    held = runs.lock(connection, ids)
    if not held:
        return {}
    states = run_facts.states_of(connection, held)
    decided = {
        run: _decide(connection, run, row, states.get(run, {}), versions=versions, settings=settings) for run, row in held.items()
    }
    moves = {run: each.moves for run, each in decided.items() if each.moves}
    failing = {run for run, each in decided.items() if each.dag.fail_fast and _failed(states.get(run, {}))}
    for run in sorted(failing & moves.keys()):
        # `_end` may change rows with lower IDs than the decisions before it, and rows are locked in the order of IDs.
        selection.lock_open(connection, run)
    if moves:
        decide(connection, moves)
    # Decisions that only end task instances may have been the last ones of the run.
    changed = [run for run, each in decided.items() if each.moves and (each.dag.fail_fast or not each.continues)]
    states |= run_facts.states_of(connection, changed) if changed else {}
    examined = {}
    for run, each in decided.items():
        ended, more = _end(connection, run, each, states.get(run, {}), fails_fast=run in failing)
        examined[run] = _ExaminedRun(each.ready, ended, more, recovered=held[run].has_error)
    if recovered := [run for run, result in examined.items() if result.recovered]:
        runs.clear_errors(connection, recovered)
    ended_runs = {run: result.closed for run, result in examined.items() if result.closed is not None}
    if ended_runs:
        runs.close(connection, ended_runs)
    if sweeps and len(ended_runs) < len(examined):
        runs.mark_examined(connection, examined.keys() - ended_runs.keys())
    return examined


@dataclass(frozen=True, slots=True)
class _Decided:
    """The decisions on a run; `moves` are those that this transaction makes."""

    dag: SerializedDag
    known: Facts
    evaluation: Evaluation
    moves: Sequence[Decision]
    #: The state with which the run ends after its teardowns, see runs.LockedRun.
    requested_state: RunState | None

    @property
    def ready(self) -> int:
        return sum(decision.state is TaskState.SCHEDULED for decision in self.moves)

    @property
    def continues(self) -> bool:
        return self.ready > 0 or len(self.moves) < len(self.evaluation.decisions)


def _decide(
    connection: Connection, dag_run_id: int, held: runs.LockedRun, states: States, *, versions: Versions, settings: Settings
) -> _Decided:
    """Decide one run, after creating the instances of mapped tasks and the tasks of a newer version."""
    started = time.monotonic()
    dag = versions.dag(connection, held.version_id)
    if (
        held.newest_id != held.version_id
        and held.requested_state is None
        and versions.dag(connection, held.newest_id).disable_bundle_versioning
    ):
        integrity.follow_newest(connection, dag_run_id, versions, default_queue=settings.core.default_queue)
        dag = versions.dag(connection, held.newest_id)
        states = run_facts.states_of(connection, [dag_run_id]).get(dag_run_id, {})
    known = run_facts.read(connection, dag, dag_run_id)
    evaluation = evaluate(dag, states, known)
    if evaluation.expand:
        # Several statements follow that create and decide instances: lock all rows first, in one order.
        selection.lock_open(connection, dag_run_id, only_undecided=True)
    while evaluation.expand:
        for no in evaluation.expand:
            states[no] = _expand(connection, dag_run_id, dag, no, states[no], most=settings.core.max_map_length)
        evaluation = evaluate(dag, states, known)
    measures.observe("dagrun.dependency-check", time.monotonic() - started, dag_id=dag.dag_id)
    # The first batch of a run has the size of one queue pass, so that workers start while the rest is scheduled.
    most = MOST_MOVES if _moves(states) else min(MOST_MOVES, settings.scheduler.max_tis_per_query)
    return _Decided(dag, known, evaluation, foremost(dag, evaluation.decisions, most), held.requested_state)


def _end(
    connection: Connection, dag_run_id: int, decided: _Decided, states: States, *, fails_fast: bool
) -> tuple[RunState | None, bool]:
    """The final state of a run, or None while it continues; and whether to examine it again.

    With fail_fast a failed task ends the others, which are locked if `fails_fast`.
    """
    continues, more = decided.continues, len(decided.moves) < len(decided.evaluation.decisions)
    if decided.dag.fail_fast and _failed(states) and not fails_fast:
        return None, True  # it failed just now: the next examination locks the rows that it ends
    if fails_fast:
        keep = decided.dag.teardowns
        end_rest(connection, dag_run_id, running_becomes="failed", reason="fail_fast: another task failed", keep=keep)
        states, continues = run_facts.states_of(connection, [dag_run_id])[dag_run_id], False
    if continues:
        return None, more
    ended = run_state(
        decided.dag,
        states,
        waiting_for_past=decided.evaluation.waits_for_past(decided.known),
        requested=decided.requested_state,
    )
    return ended, more


def foremost(dag: SerializedDag, decisions: Sequence[Decision], most: int) -> Sequence[Decision]:
    """At most `most` of these decisions. Decisions that end task instances come first, since others may depend on them; then the
    rank counts.
    """
    if len(decisions) <= most:
        return decisions
    tasks = dag.tasks
    return sorted(
        decisions, key=lambda each: -tasks[each.task_no].priority_weight if each.state is TaskState.SCHEDULED else -math.inf
    )[:most]


def _expand(
    connection: Connection, dag_run_id: int, dag: SerializedDag, no: int, own: dict[int, TaskState], *, most: int
) -> dict[int, TaskState]:
    """Create the instances of a mapped task, given its current ones. Returns the states of its instances."""
    spec = dag.tasks[no].expand
    assert spec is not None
    keys = expansion.reads(spec)
    count = expansion.size(spec, run_facts.lengths(connection, dag_run_id, dag, keys) if keys else {}, most)
    if isinstance(count, str):
        decide(connection, {dag_run_id: [Decision(no, TaskState.UPSTREAM_FAILED, count)]})
        return own | {-1: TaskState.UPSTREAM_FAILED}
    if len(own) > 1:
        integrity.expand_again(connection, dag, dag_run_id, no, count)
        return run_facts.states_of(connection, [dag_run_id])[dag_run_id][no]
    expand.expand(connection, dag_run_id, no, count)
    return dict.fromkeys(range(count), TaskState.NONE) if count else {-1: TaskState.SKIPPED}


def _moves(states: States) -> bool:
    """Whether a task instance of the run is scheduled, running or waiting."""
    return any(state not in FINISHED and state is not TaskState.NONE for of_task in states.values() for state in of_task.values())


def _failed(states: States) -> bool:
    return any(state is TaskState.FAILED for of_task in states.values() for state in of_task.values())


#: The number of attempts, with pauses of HELD_PAUSE_S, to examine a hinted run that another scheduler has locked. That scheduler
#: may have read the run before the change that caused the hint. After the last attempt, the run is left to the sweep.
HINT_PASSES = 20


class Promote(Service):
    """Examines the runs of its wakeups. Schedulers share the work, see Examiner."""

    name = "promote"
    pending = due.PENDING
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
        starters, log = self.examiner.follow_up(examined)
        self.hints |= {run_id: hinted[run_id] - 1 for run_id in examined.held_elsewhere if hinted[run_id] > 1}
        again_in_s = None
        if examined.unfinished or len(examined.started) >= runs.MOST_STARTS:
            again_in_s = AT_ONCE  # more may wait than one pass starts
        elif self.hints or examined.starts_later:
            again_in_s = HELD_PAUSE_S
        elif examined.next_due_s is not None and examined.next_due_s < self.interval_s:
            again_in_s = max(examined.next_due_s, HELD_PAUSE_S)
        return Result(services=["queue"] if examined.ready else [], if_pending=starters, again_in_s=again_in_s, log=log)
