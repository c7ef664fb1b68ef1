"""promote: start queued runs, make ready what waited for its time, decide what each run asks for next, close runs that ended."""

import logging
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from scheduler.deciding import expansion, past
from scheduler.deciding.evaluate import Evaluation, Facts, evaluate, run_state
from scheduler.exceptions import PacelineError, UnreadableVersionError
from scheduler.serialized.dag import SerializedDag
from scheduler.services import closed_runs
from scheduler.services.service import AT_ONCE, HELD_PAUSE_S, LogLine, Result, Service
from scheduler.settings import Settings
from scheduler.states import FINISHED, Decision, RunState, TaskState
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import is_of_statement, transaction, transaction_at
from scheduler.store.runs import instances, integrity, run_facts, runs, unexpand

#: A hinted run that another scheduler held is tried again so often, after pauses of HELD_PAUSE_S, before it is left to the slow
#: poll: the other may have read it before what the hint is about.
HINT_PASSES = 20
#: Task instances moved in one transaction; a run that asks for more is looked at again at once.
MOST_MOVES = 2000
#: Runs examined in one transaction. More would save little, and keep the queue services of other schedulers from these runs.
MOST_RUNS = 20
#: Characters of the reason that is kept for a run that cannot be decided.
LONGEST_ERROR = 1000
States = dict[int, dict[int, TaskState]]


@dataclass(frozen=True, slots=True)
class Promoted:
    """What moved: runs started and closed, task instances made ready; runs to look at again, because another scheduler held
    them or they ask for more; runs that cannot be decided, with the reason, as far as that is news; and runs that can be again.
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


class Promote(Service):
    """Any number of schedulers may promote at once: each run is locked while it is decided, and held ones are passed over.

    Small runs share transactions; if one of these fails, each of its runs is examined by itself, so that one stops no other.
    """

    name = "promote"
    pending = instances.PENDING
    wakeups = frozenset({"run", "next"})

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        self._engine = engine
        self._settings = settings
        self._versions = versions
        #: Runs to examine, with the passes left to get hold of each.
        self.hints: dict[int, int] = {}
        #: Runs in which something ended that the runs after them may wait for.
        self._passed: set[int] = set()
        self.interval_s = settings.scheduler.scheduler_idle_sleep_time

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
            self.hint(runs.following(self._engine, passed))
        hinted, self.hints = self.hints, {}
        promoted = self.examine(hinted)
        self.hint(sorted(promoted.unfinished))
        wake, log = self.follow_up(promoted)
        self.hints |= {run_id: hinted[run_id] - 1 for run_id in promoted.held_elsewhere if hinted[run_id] > 1}
        again_in_s = None
        if promoted.closed or promoted.started or promoted.unfinished:
            again_in_s = AT_ONCE  # a run that ended may have made room for one that waits
        elif self.hints:
            again_in_s = HELD_PAUSE_S
        elif promoted.next_due_s is not None and promoted.next_due_s < self.interval_s:
            again_in_s = max(promoted.next_due_s, HELD_PAUSE_S)
        return Result(wake=wake, again_in_s=again_in_s, log=log)

    def follow_up(self, promoted: Promoted) -> tuple[list[str], list[LogLine]]:
        """The services to wake, and what to log. A run that cannot be decided is logged once; each sweep meets it again."""
        log = [
            *((logging.ERROR, f"DAG run {run_id} cannot be decided: {why}") for run_id, why in promoted.broken.items()),
            *((logging.INFO, f"DAG run {run_id} can be decided again") for run_id in promoted.recovered),
        ]
        wake, paused = closed_runs.follow_up(self._engine, promoted.closed)
        return [*wake, *(["queue"] if promoted.ready else [])], [*log, *paused]

    def examine(
        self, hinted: Collection[int] | None = None, *, also: Collection[int] = (), without: Collection[int] = ()
    ) -> Promoted:
        """Examine the runs hinted at and just started; without hints sweep: examine `also` and the
        longest unexamined, not `without`.
        """
        limit = self._settings.scheduler.max_dagruns_per_loop_to_schedule
        started = runs.start_queued(self._engine)
        ready, next_due_s = _due(self._engine, self._settings.scheduler.max_tis_per_query)
        looked_for = {*also, *_candidates(self._engine, limit, without)} if hinted is None else hinted
        wanted = sorted({*looked_for, *started})
        found = _Found()
        for batch in _batches(self._engine, wanted, self._versions) if wanted else []:
            self._examine_batch(batch, found, sweeps=hinted is None)
        missed = set(hinted or ()) - found.examined.keys() - found.undecided
        return Promoted(
            started,
            closed={run: one.closed for run, one in found.examined.items() if one.closed is not None},
            ready=ready + sum(one.ready for one in found.examined.values()),
            held_elsewhere=_still_running(self._engine, missed) if missed else set(),
            unfinished={run for run, one in found.examined.items() if one.more},
            broken=found.broken,
            recovered={run for run, one in found.examined.items() if one.recovered},
            next_due_s=next_due_s,
        )

    def _examine_batch(self, batch: list[int], found: "_Found", *, sweeps: bool) -> None:
        try:
            found.examined |= _examine(self._engine, batch, self._versions, self._settings, sweeps=sweeps)
        except Exception as error:
            if isinstance(error, OperationalError) and not is_of_statement(error):
                raise
            if len(batch) > 1:
                for run in batch:
                    self._examine_batch([run], found, sweeps=sweeps)
                return
            (run,) = batch
            found.undecided.add(run)
            reason = _reason(error)
            if _set_aside(self._engine, run, reason):
                found.broken[run] = reason


@dataclass(frozen=True, slots=True)
class _Examined:
    ready: int
    closed: RunState | None
    more: bool
    recovered: bool


@dataclass(slots=True)
class _Found:
    """What came of the runs that could be held, which cannot be decided, and of which of these that is news."""

    examined: dict[int, _Examined] = field(default_factory=dict)
    undecided: set[int] = field(default_factory=set)
    broken: dict[int, str] = field(default_factory=dict)


def _reason(error: Exception) -> str:
    """One that is ours is a sentence; any other needs the name of its kind."""
    if isinstance(error, DBAPIError) and isinstance(error.orig, Exception):
        error = error.orig  # without the statement
    text = str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
    # PostgreSQL stores no NUL, and no half of a surrogate pair.
    return text.replace("\0", "").encode(errors="replace").decode()[:LONGEST_ERROR].strip()


@transaction_at("due", lambda due: due[0])
def _due(connection: Connection, limit: int) -> tuple[int, float | None]:
    return instances.due(connection, limit=limit), instances.next_due_s(connection)


@transaction
def _candidates(connection: Connection, limit: int, without: Collection[int]) -> list[int]:
    return runs.to_examine(connection, limit=limit, without=without)


@transaction
def _still_running(connection: Connection, ids: Collection[int]) -> set[int]:
    return runs.still_running(connection, ids)


@transaction
def _set_aside(connection: Connection, dag_run_id: int, reason: str) -> bool:
    return runs.set_aside(connection, dag_run_id, reason)


@transaction
def _batches(connection: Connection, ids: Collection[int], versions: Versions) -> list[list[int]]:
    """Runs that share a transaction, ascending: small ones of which nothing but states is asked. Each other one is by itself."""
    batches: list[list[int]] = []
    room = 0
    for run, version_id in sorted(runs.versions_of(connection, ids).items()):
        try:
            dag = versions.dag(connection, version_id)
        except UnreadableVersionError:
            batches.append([run])  # examining it says why
            room = 0
            continue
        size = max(1, len(dag.tasks)) if dag.is_plain else MOST_MOVES
        if size > room or len(batches[-1]) == MOST_RUNS:
            batches.append([])
            room = MOST_MOVES
        batches[-1].append(run)
        room -= size
    return batches


@transaction_at("promote")
def _examine(
    connection: Connection, ids: Sequence[int], versions: Versions, settings: Settings, *, sweeps: bool
) -> dict[int, _Examined]:
    """Some runs in one short transaction: lock, read, decide, write. What came of those that nobody else holds."""
    held = runs.hold(connection, ids)
    if not held:
        return {}
    states = instances.states_of(connection, held)
    looks = {
        run: _look(connection, run, one, states.get(run, {}), versions=versions, settings=settings) for run, one in held.items()
    }
    moves = {run: look.moves for run, look in looks.items() if look.moves}
    failing = {run for run, look in looks.items() if look.dag.fail_fast and _failed(states.get(run, {}))}
    for run in sorted(failing & moves.keys()):
        # What `_end` changes of it may have lower ids than what is decided first.
        instances.hold_unfinished(connection, run)
    if moves:
        instances.decide(connection, moves)
    # Decisions that only end task instances may be all that was left to decide.
    changed = [run for run, look in looks.items() if look.moves and (look.dag.fail_fast or not look.goes_on)]
    states |= instances.states_of(connection, changed) if changed else {}
    examined = {}
    for run, look in looks.items():
        ended, more = _end(connection, run, look, states.get(run, {}), fails_fast=run in failing)
        examined[run] = _Examined(look.ready, ended, more, recovered=held[run].has_error)
    if recovered := [run for run, one in examined.items() if one.recovered]:
        runs.decided_again(connection, recovered)
    ended_runs = {run: one.closed for run, one in examined.items() if one.closed is not None}
    if ended_runs:
        runs.close(connection, ended_runs)
    if sweeps and len(ended_runs) < len(examined):
        runs.mark_examined(connection, examined.keys() - ended_runs.keys())
    return examined


@dataclass(frozen=True, slots=True)
class _Look:
    """What a run asks for, and as much of it as is done now."""

    dag: SerializedDag
    known: Facts
    evaluation: Evaluation
    moves: Sequence[Decision]

    @property
    def ready(self) -> int:
        return sum(decision.state is TaskState.SCHEDULED for decision in self.moves)

    @property
    def goes_on(self) -> bool:
        return self.ready > 0 or len(self.moves) < len(self.evaluation.decisions)


def _look(
    connection: Connection, dag_run_id: int, held: runs.Held, states: States, *, versions: Versions, settings: Settings
) -> _Look:
    """Decide one run; what has to be made first (instances of mapped tasks, tasks of a newer version) is."""
    dag = versions.dag(connection, held.version_id)
    if held.newest_id != held.version_id and versions.dag(connection, held.newest_id).disable_bundle_versioning:
        integrity.follow_newest(connection, dag_run_id, versions, default_queue=settings.core.default_queue)
        dag = versions.dag(connection, held.newest_id)
        states = instances.states_of(connection, [dag_run_id]).get(dag_run_id, {})
    known = facts_of(connection, dag, dag_run_id)
    evaluation = evaluate(dag, states, known)
    if evaluation.expand:
        # Statement after statement makes instances and decides: all take them in one order.
        instances.hold_undecided(connection, dag_run_id)
    while evaluation.expand:
        for no in evaluation.expand:
            states[no] = _expand(connection, dag_run_id, dag, no, states[no], most=settings.core.max_map_length)
        evaluation = evaluate(dag, states, known)
    # A run in which nothing moves yet gets what one queue pass takes, so that workers begin while the rest is made ready.
    most = MOST_MOVES if _moves(states) else min(MOST_MOVES, settings.scheduler.max_tis_per_query)
    return _Look(dag, known, evaluation, foremost(dag, evaluation.decisions, most))


def _end(connection: Connection, dag_run_id: int, look: _Look, states: States, *, fails_fast: bool) -> tuple[RunState | None, bool]:
    """How a run ends, None while it goes on, and whether it has to be looked at again.

    With fail_fast a failed task ends the others, which are locked if `fails_fast`.
    """
    goes_on, more = look.goes_on, len(look.moves) < len(look.evaluation.decisions)
    if look.dag.fail_fast and _failed(states) and not fails_fast:
        return None, True  # it failed just now: the next look holds what it ends
    if fails_fast:
        keep = [no for no, task in enumerate(look.dag.tasks) if task.is_teardown]
        instances.end_rest(connection, dag_run_id, running_becomes="failed", reason="fail_fast: another task failed", keep=keep)
        states, goes_on = instances.states_of(connection, [dag_run_id])[dag_run_id], False
    if goes_on:
        return None, more
    return run_state(look.dag, states, waiting_for_past=_waits_for_past(look.evaluation, look.known)), more


def foremost(dag: SerializedDag, decisions: Sequence[Decision], most: int) -> Sequence[Decision]:
    """At most so many of these decisions: first those that end task instances, which others may rest on, then by rank."""
    if len(decisions) <= most:
        return decisions
    tasks = dag.tasks
    return sorted(
        decisions, key=lambda one: -tasks[one.task_no].priority_weight if one.state is TaskState.SCHEDULED else -math.inf
    )[:most]


def facts_of(connection: Connection, dag: SerializedDag, dag_run_id: int) -> Facts:
    """What the tasks of a run look at beside its states: read only what this DAG asks for."""
    branched = run_facts.branched(connection, dag_run_id) if dag.has_branches else ()
    if not dag.depends_on_past:
        return Facts(branched=branched)
    before = run_facts.before(connection, dag_run_id, past.relevant(dag), catchup=dag.catchup)
    return Facts(branched=branched, past=past.waits(dag, before))


def _expand(
    connection: Connection, dag_run_id: int, dag: SerializedDag, no: int, own: dict[int, TaskState], *, most: int
) -> dict[int, TaskState]:
    """Make the instances of a mapped task, which has these; the states of what is there now."""
    spec = dag.tasks[no].expand
    assert spec is not None
    keys = expansion.reads(spec)
    count = expansion.count(spec, run_facts.lengths(connection, dag_run_id, dag, keys) if keys else {})
    if count is None or count > most:
        missing = ", ".join(sorted(task_id for task_id, _ in keys))
        reason = (
            f"{missing} returned no list or dict to map over"
            if count is None
            else f"it would become {count} instances; core.max_map_length allows {most}"
        )
        instances.decide(connection, {dag_run_id: [Decision(no, TaskState.UPSTREAM_FAILED, reason)]})
        return own | {-1: TaskState.UPSTREAM_FAILED}
    if len(own) > 1:
        unexpand.expand_again(connection, dag, dag_run_id, no, count)
        return instances.states_of(connection, [dag_run_id])[dag_run_id][no]
    instances.expand(connection, dag_run_id, no, count)
    return dict.fromkeys(range(count), TaskState.NONE) if count else {-1: TaskState.SKIPPED}


def _moves(states: States) -> bool:
    """Whether something of the run waits or runs."""
    return any(state not in FINISHED and state is not TaskState.NONE for of_task in states.values() for state in of_task.values())


def _failed(states: States) -> bool:
    return any(state is TaskState.FAILED for of_task in states.values() for state in of_task.values())


def _waits_for_past(evaluation: Evaluation, known: Facts) -> bool:
    return any(no in known.past for no, _ in evaluation.waiting)
