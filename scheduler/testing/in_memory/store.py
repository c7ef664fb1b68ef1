"""The store of tries in memory, for one run without a database. scheduler/deciding decides in it."""

import heapq
import os
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from paceline.authoring import xcom
from paceline.authoring.asset import NO_EVENTS, EventReads
from paceline.authoring.context import DagRun
from paceline.authoring.triggers import Counts, Target
from paceline.authoring.xcom import RETURN_KEY
from paceline.exceptions import NoTablesError, PacelineError
from paceline.states import DUE, FINISHED, HOLDS_SLOTS, UNFINISHED, Branched, Decision, RunState
from paceline.states import TaskState as S
from paceline.testing.results import TriggeredRun
from scheduler.catalog.access import Access
from scheduler.deciding import evaluate, expansion
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.db import fencing
from scheduler.store.worker.claims import Claim, Deferral, Ending, NextInPlace, Refused, Reported
from scheduler.store.worker.xcoms import Source
from scheduler.testing.in_memory.backends import MemoryBackend, MemoryStates, StoredSecrets

#: Used instead of the number of a run in the database.
NO_NUMBER = 0
#: The largest return value that a test may give.
MAX_GIVEN_BYTES = 1 << 30


@dataclass(slots=True, kw_only=True)
class Instance:
    """A task instance and its XComs, as JSON texts by key."""

    id: int
    task_no: int
    map_index: int
    state: S = S.NONE
    try_number: int = 0
    dispatch_id: str = ""
    reason: str | None = None
    label: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    #: On the monotonic clock; None for a deferral without timeout.
    due_at: float | None = None
    resume: dict[str, Any] | None = None
    deferral: Deferral | None = None
    xcoms: dict[str, str] = field(default_factory=dict)


class MemoryStore:
    """The task instances of one run of `plan`, of which one runs at a time. See workers/task/store.py."""

    #: No runtime sends statements.
    ask = None

    def __init__(
        self,
        plan: SerializedDag,
        dag_run: DagRun,
        *,
        max_map_length: int,
        retries: bool = True,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.plan = plan
        self.dag_run = dag_run
        #: By task number and map index, as `evaluate` reads them.
        self.states: dict[int, dict[int, S]] = {}
        self.instances: list[Instance] = []
        #: By task number and map index, without those of before an expansion.
        self.at: dict[tuple[int, int], Instance] = {}
        #: Places in `at`: a heap of the scheduled ones, and some that were scheduled before.
        self._scheduled: list[tuple[int, int]] = []
        #: The task instances that have ended, in this order.
        self.ended: list[Instance] = []
        self.branched: list[Branched] = []
        self.triggered: list[TriggeredRun] = []
        self._max_map_length = max_map_length
        self._retries = retries
        self._environment = environment
        self._variables: dict[str, str | None] = {}
        #: The variables and connections of a database, if there is one.
        self.stored: StoredSecrets | None = None
        self._states: dict[tuple[str | int, str], tuple[str, float | None]] = {}
        for no in range(len(plan.tasks)):
            self._create(no, [-1])
        self.settle()

    @property
    def state(self) -> RunState | None:
        """The final state of the run. None while it continues."""
        return evaluate.run_state(self.plan, self.states)

    def first_ready(self) -> Instance | None:
        """Return the scheduled task instance with the lowest task number and map index. None if there is none."""
        while self._scheduled:
            instance = self.at.get(self._scheduled[0])
            if instance is not None and instance.state is S.SCHEDULED:
                return instance
            heapq.heappop(self._scheduled)
        return None

    def suspended(self) -> list[Instance]:
        """Return the task instances that wait for a retry, the next poke of a sensor, or a trigger."""
        return self._in(DUE)

    def queue(self, instance: Instance) -> tuple[int, str]:
        """Move scheduled to queued. Returns the ID of the task instance and the dispatch ID."""
        assert instance.state is S.SCHEDULED
        instance.dispatch_id = str(uuid.uuid4())
        self._move(instance, S.QUEUED)
        return instance.id, instance.dispatch_id

    def resume(self, instance: Instance, outcome: Mapping[str, Any]) -> None:
        """Move a suspended task instance to scheduled. `outcome` is that of its trigger."""
        assert instance.state in DUE
        if instance.state is S.UP_FOR_RETRY:
            instance.try_number, instance.resume = instance.try_number + 1, None
        else:
            instance.resume = {**(instance.resume or {}), **outcome}
        instance.due_at = instance.deferral = None
        self._move(instance, S.SCHEDULED)

    def end_as_given(self, task_no: int, value: Any) -> None:
        """Let a task succeed with this return value without running it. A mapped task gets an instance for each entry of a list."""
        is_mapped = task_no in self.plan.mapped
        values = list(value) if is_mapped and isinstance(value, list | tuple) else [value]
        if is_mapped:
            for place in [place for place in self.at if place[0] == task_no]:
                del self.at[place]
            self._create(task_no, range(len(values)))
        for map_index, result in zip(sorted(self.states[task_no]), values, strict=True):
            instance = self.at[task_no, map_index]
            if result is not None:
                instance.xcoms[RETURN_KEY] = xcom.encode(result, MAX_GIVEN_BYTES)
            self._move(instance, S.SUCCESS)

    def make_ready(self, task_no: int) -> None:
        """Move the instances of a task to scheduled, regardless of its trigger rule."""
        if (task_no, -1) in self.at and self.plan.tasks[task_no].expand is not None:
            self._expand(task_no)
        for map_index, state in sorted(self.states[task_no].items()):
            if state is S.NONE:
                self._decide(Decision(task_no, S.SCHEDULED, "", map_index))

    def claim(self, ti_id: int, dispatch_id: str, worker_id: str, is_ours: object = None) -> Claim | None:
        instance, run = self.instances[ti_id], self.dag_run
        if instance.state is not S.QUEUED or instance.dispatch_id != dispatch_id:
            return None
        self._move(instance, S.RUNNING)
        if instance.resume is None or instance.started_at is None:
            instance.started_at = self.now()
        task = self.plan.tasks[instance.task_no]
        return Claim(
            id=ti_id, dispatch_id=dispatch_id, task_id=task.task_id, map_index=instance.map_index, task_no=instance.task_no,
            try_number=instance.try_number, max_tries=self.max_tries(task), queue=task.queue or "default",
            pool=task.pool, pool_slots=task.pool_slots, priority_weight=task.priority_weight, started_at=instance.started_at,
            resume=instance.resume, dag_run_id=NO_NUMBER, dag_id=run.dag_id, run_id=run.run_id, run_type=run.run_type,
            logical_date=run.logical_date, data_interval_start=run.data_interval_start, data_interval_end=run.data_interval_end,
            run_after=run.run_after or instance.started_at, run_started_at=run.start_date, conf=dict(run.conf),
            version_id=NO_NUMBER, partition_key=run.partition_key, partition_date=run.partition_date,
        )  # fmt: skip

    def max_tries(self, task: SerializedTask) -> int:
        """How many tries of a task may fail before the last one."""
        return task.retries if self._retries else 0

    def dag(self, version_id: int) -> SerializedDag:
        return self.plan

    def report(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None = None) -> Reported | Refused:
        instance = self.instances[claim.id]
        if instance.state is not S.RUNNING or instance.dispatch_id != claim.dispatch_id:
            return Refused(is_stored=False)
        instance.reason, instance.resume, instance.deferral = ending.reason, ending.resume, ending.deferral
        instance.due_at = None if ending.delay_s is None else time.monotonic() + ending.delay_s
        if ending.result is not None:
            instance.xcoms[RETURN_KEY] = ending.result
        if ending.skip is not None and ending.state is S.SUCCESS:
            self.branched.append(Branched(task_no=instance.task_no, map_index=instance.map_index, skip=frozenset(ending.skip)))
        self._move(instance, ending.state)
        if ending.state in FINISHED:
            self.settle()
        return Reported(pool_has_waiting=False, others_wait=False)

    def settle(self) -> None:
        """Apply all decisions, and create the instances of mapped tasks, until nothing is left to decide."""
        while True:
            evaluation = evaluate.evaluate(self.plan, self.states, evaluate.Facts(branched=tuple(self.branched)))
            if evaluation.expand:
                for no in evaluation.expand:
                    self._expand(no)
                continue
            for decision in evaluation.decisions:
                self._decide(decision)
            if self.plan.fail_fast and any(instance.state is S.FAILED for instance in self.ended):
                self._end_rest()
            # A task that is ready decides nothing below it.
            if all(decision.state is S.SCHEDULED for decision in evaluation.decisions):
                return

    def clear_xcoms(self, claim: Claim) -> None:
        self._current(claim).xcoms.clear()

    def push_xcom(self, claim: Claim, key: str, json_text: str) -> None:
        self._current(claim).xcoms[key] = json_text

    def pull_xcom(self, claim: Claim, task_id: str, key: str, map_index: int, default: Any) -> Any:
        instance = self.at.get((self.plan.number.get(task_id, -1), map_index))
        return xcom.decode(instance.xcoms[key]) if instance is not None and key in instance.xcoms else default

    def pull_xcoms(self, claim: Claim, task_no: int, key: str) -> list[Any]:
        return [xcom.decode(text) for text in self._texts(task_no, key)]

    def pull_other(self, claim: Claim, source: Source, key: str, map_index: int | None) -> list[tuple[int, Any]]:
        """Return values of this run only, because a run in memory has no others."""
        no = self.plan.number.get(source.task_id)
        if source.dag_id != claim.dag_id or no is None or not (source.prior or source.run_id == claim.run_id):
            return []
        found = ((index, one) for (number, index), one in sorted(self.at.items(), key=itemgetter(0)) if number == no)
        return [(i, xcom.decode(one.xcoms[key])) for i, one in found if key in one.xcoms and map_index in (None, i)]

    def count_entries(self, claim: Claim, task_no: int, key: str, *, is_mapped: bool) -> int | None:
        return self._count(task_no, key, is_mapped=is_mapped)

    def entry(self, claim: Claim, task_no: int, key: str, place: int, *, is_mapped: bool) -> Sequence[Any]:
        if is_mapped:
            return [xcom.decode(text) for text in self._texts(task_no, key)[place : place + 1]]
        return (self._entries(task_no, key) or [])[place : place + 1]

    def label(self, claim: Claim, text: str) -> None:
        self._current(claim).label = text

    def count_instances(self, claim: Claim) -> int:
        return len(self.states[claim.task_no])

    def now(self) -> datetime:
        return datetime.now(UTC)

    def count_states(self, targets: Sequence[Target]) -> list[Counts]:
        raise PacelineError(f"This run has no database, so it cannot look at DAG {targets[0].dag_id!r}.")

    def describe_dag(self, dag_id: str) -> None:
        """Return None, because a run in memory has no other DAGs."""

    def is_paused(self, dag_id: str) -> bool:
        """Return False, because a run in memory has no other DAGs."""
        return False

    def trigger_run(
        self,
        claim: Claim,
        dag_id: str,
        *,
        run_id: str | None,
        logical_date: datetime | None,
        conf: Mapping[str, Any],
        reset: bool,
        adopt_unless: Collection[str] | None,
    ) -> str:
        run_id = run_id or f"manual__{(logical_date or self.now()).isoformat()}"
        self.triggered.append(TriggeredRun(dag_id=dag_id, run_id=run_id, logical_date=logical_date, conf=conf))
        return run_id

    def first_start(self, claim: Claim, first_try: int) -> datetime:
        """Return the start of this try, because a run in memory keeps no others."""
        return claim.started_at

    def previous_success(self, claim: Claim) -> None:
        """Return None, because a run in memory has no other runs."""

    def tables(self, claim: Claim) -> Access:
        raise NoTablesError("This run has no database, so it has no tables: run the task on a worker.")

    def follow_tables(self, claim: Claim) -> None:
        """Do nothing, because a run in memory has no tables."""

    def secrets(self, claim: Claim) -> MemoryBackend:
        return MemoryBackend(self._environment, variables=self._variables, check=lambda: self._current(claim), stored=self.stored)

    def events(self, claim: Claim) -> EventReads:
        return NO_EVENTS

    def state_backend(self, claim: Claim) -> MemoryStates:
        return MemoryStates(claim.id, lambda: self._current(claim), self._states)

    def _create(self, no: int, indexes: Sequence[int]) -> None:
        self.states[no] = dict.fromkeys(indexes, S.NONE)
        for index in indexes:
            instance = self.at[no, index] = Instance(id=len(self.instances), task_no=no, map_index=index)
            self.instances.append(instance)

    def _expand(self, no: int) -> None:
        """Create the instances of a mapped task, or end it as a whole."""
        spec = self.plan.tasks[no].expand
        assert spec is not None
        reads = {(name, key): self.plan.number[name] for name, key in expansion.reads(spec)}
        counts = {read: self._count(above, read[1], is_mapped=above in self.plan.mapped) for read, above in reads.items()}
        lengths = {read: length for read, length in counts.items() if length is not None}
        count = expansion.size(spec, lengths, self._max_map_length)
        if isinstance(count, str):
            self._decide(Decision(no, S.UPSTREAM_FAILED, count))
        elif count == 0:
            self._decide(Decision(no, S.SKIPPED, "there is nothing to map over"))
        else:
            del self.at[no, -1]
            self._create(no, range(count))

    def _count(self, task_no: int, key: str, *, is_mapped: bool) -> int | None:
        entries = self._texts(task_no, key) if is_mapped else self._entries(task_no, key)
        return None if entries is None else len(entries)

    def _entries(self, task_no: int, key: str) -> list[Any] | None:
        match [xcom.decode(text) for text in self._texts(task_no, key)]:
            case [list(entries)]:
                return entries
            case [dict(pairs)]:
                return [list(pair) for pair in pairs.items()]
        return None

    def _texts(self, task_no: int, key: str) -> list[str]:
        every = (self.at[task_no, index] for index in self.states[task_no])
        return [instance.xcoms[key] for instance in every if key in instance.xcoms]

    def _decide(self, decision: Decision) -> None:
        instance = self.at[decision.task_no, decision.map_index]
        instance.reason = decision.reason
        instance.try_number += decision.state is S.SCHEDULED
        self._move(instance, decision.state)

    def _end_rest(self) -> None:
        """Skip all that has not started, but no teardowns: a task of a DAG with fail_fast failed."""
        for instance in self._in(UNFINISHED - HOLDS_SLOTS):
            if not self.plan.tasks[instance.task_no].is_teardown:
                instance.reason = "fail_fast: another task failed"
                self._move(instance, S.SKIPPED)

    def _move(self, instance: Instance, state: S) -> None:
        instance.state = self.states[instance.task_no][instance.map_index] = state
        if state in FINISHED:
            instance.ended_at = self.now()
            if state is not S.REMOVED:
                self.ended.append(instance)
        elif state is S.SCHEDULED:
            heapq.heappush(self._scheduled, (instance.task_no, instance.map_index))

    def _in(self, states: Collection[S]) -> list[Instance]:
        """The task instances in these states, by task number and map index."""
        places = [(no, at) for no, of_task in self.states.items() for at, state in of_task.items() if state in states]
        return [self.at[place] for place in places]

    def _current(self, claim: Claim) -> Instance:
        instance = self.instances[claim.id]
        if instance.state not in HOLDS_SLOTS or (instance.dispatch_id, instance.try_number) != (
            claim.dispatch_id,
            claim.try_number,
        ):
            raise fencing.stale(claim.writer)
        return instance
