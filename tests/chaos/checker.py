"""The checker compares the plan, the executions in the ledger and the stored state. Pure: it excuses only causes in the history.

Each counter is a list of sentences; docs/explanation/chaos.md has the source of each, and the mutants that prove it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from chaos.history import Action, History
from chaos.order import Order
from chaos.plan import Plan, PlannedDag, PlannedTask
from chaos.records import Execution, Key, Records, StoredInstance, StoredRun, StoredTry
from chaos.rules import FAIL, RUN, SKIP, verdicts

#: Counters of this checker, in the order in which they are printed.
COUNTERS = ("lost_success", "failed_without_cause", "skipped_without_cause", "wrong_xcoms", "out_of_order", "wrong_runs",
            "teardowns_missed", "parallelism_overruns", "slot_overruns")  # fmt: skip
FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


@dataclass(frozen=True)
class Overlap:
    """Two executions of one task instance at the same time: for how long, if that is known, and whether a fault explains it."""

    label: str
    seconds: float | None
    excused: bool


@dataclass
class Findings:
    """All lists of a correct run are empty; overlaps that a fault explains are allowed (at-least-once)."""

    lost_success: list[str] = field(default_factory=list)
    failed_without_cause: list[str] = field(default_factory=list)
    skipped_without_cause: list[str] = field(default_factory=list)
    wrong_xcoms: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    wrong_runs: list[str] = field(default_factory=list)
    teardowns_missed: list[str] = field(default_factory=list)
    parallelism_overruns: list[str] = field(default_factory=list)
    slot_overruns: list[str] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(getattr(self, name) for name in COUNTERS) and all(overlap.excused for overlap in self.overlaps)

    def overlap_figures(self) -> dict[str, float | int | None]:
        known = [overlap.seconds for overlap in self.overlaps if overlap.seconds is not None]
        return {
            "count": len(self.overlaps),
            "longest_s": round(max(known), 2) if known else None,
            "without_fault": sum(not overlap.excused for overlap in self.overlaps),
        }


@dataclass(frozen=True)
class Tolerance:
    """Seconds after a fault in which a try of the harmed worker may still be lost: until its silence is noticed and acted on."""

    after_harm_s: float
    #: Between the clock of a fault and that of the ledger, and the way of a signal.
    slack_s: float = 1.0
    #: Until a worker has stopped a task that a user cleared or marked.
    action_s: float = 60.0
    #: From the end of an outage of PostgreSQL to the report of a task that ended in it: the longest pause between attempts, plus 1.
    report_s: float = 6.0


def check(plan: Plan, records: Records, history: History, tolerance: Tolerance) -> Findings:
    """Everything that contradicts the plan without a cause in the history."""
    return _Case(plan, records, history, tolerance).findings()


class _Case:
    def __init__(self, plan: Plan, records: Records, history: History, tolerance: Tolerance) -> None:
        self._plan, self._records, self._history, self._tolerance = plan, records, history, tolerance
        self._ran = records.of()
        self._of_run: defaultdict[tuple[str, str], list[StoredInstance]] = defaultdict(list)
        for instance in records.instances:
            self._of_run[instance.key[:2]].append(instance)
        self._stored = {instance.key: instance for instance in records.instances}
        self._actions: defaultdict[tuple[str, str], list[Action]] = defaultdict(list)
        for action in history.actions:
            self._actions[action.dag_id, action.run_id].append(action)

    def findings(self) -> Findings:
        found = Findings()
        found.wrong_runs += self._runs()
        for run in self._records.runs:
            dag = self._plan.dags.get(run.dag_id)
            if dag is None:
                continue
            instances = self._of_run[run.dag_id, run.run_id]
            found.wrong_runs += self._instances(dag, run, instances)
            for one in instances:
                task = dag.task.get(one.key[2])
                if task is not None:
                    self._tries(found, task, one)
                    self._verdict(found, dag, task, one, instances)
                    found.wrong_xcoms += self._values(task, one)
            self._end(found, dag, run, instances)
        found.out_of_order += Order(self._plan, self._records, self._touched).findings()
        executions = [one for one in self._records.executions if not self._excused(one)]
        found.parallelism_overruns += _over(executions, self._plan.parallelism, lambda _: 1, "parallelism")
        for pool, slots in self._plan.pools.items():
            held = {key: task.pool_slots for key, task in self._tasks(executions) if task.pool == pool}
            inside = [one for one in executions if one.key in held]
            found.slot_overruns += _over(inside, slots, lambda one, held=held: held[one.key], f"pool {pool}")  # type: ignore[misc]
        found.overlaps += self._overlaps()
        return found

    # Excuses

    def _harmed(self, process: str, child: int | None, start: float, end: float) -> bool:
        """Whether a fault hit this worker, or this child of it, between the two."""
        late = self._tolerance.after_harm_s
        slack = self._tolerance.slack_s
        return any(
            harm.start - slack <= end and start <= harm.end + late
            for harm in self._history.harms
            if harm.process is None or (harm.process == process and (harm.child is None or child in {None, 0, harm.child}))
        )

    def _excused(self, one: Execution) -> bool:
        reported = self._reported(self._end_of(one))
        return self._harmed(one.process, one.child, one.start, reported) or self._stopped(one.key, one.start, reported)

    def _marked_since(self, one: Execution) -> bool:
        """Whether a person marked this task instance while it ran or at any time after: the mark then overrules its outcome."""
        slack = self._tolerance.slack_s
        return any(action.kind == "mark" and action.end >= one.start - slack for action in self._touching(one.key))

    def _end_of(self, one: Execution) -> float:
        return one.start + self._tolerance.after_harm_s if one.ended is None else one.ended

    def _reported(self, end: float) -> float:
        """The latest time at which the report of that end was stored: only outages of PostgreSQL move it."""
        for outage in sorted(self._history.outages, key=lambda one: one.start):
            if outage.start - self._tolerance.slack_s <= end <= outage.end:
                end = outage.end + self._tolerance.report_s
        return end

    def _stopped(self, key: Key, start: float, end: float) -> bool:
        """Whether a user action between the two times stopped it."""
        return any(
            action.start - self._tolerance.slack_s <= end and start <= action.end + self._tolerance.action_s
            for action in self._touching(key)
        )

    def _touching(self, key: Key) -> list[Action]:
        return [action for action in self._actions[key[:2]] if key[2] in action.tasks]

    def _touched(self, key: Key) -> bool:
        return bool(self._touching(key))

    # Runs and task instances

    def _runs(self) -> Iterator[str]:
        stored = {(run.dag_id, run.run_id): run for run in self._records.runs if run.dag_id not in self._plan.others}
        for (dag_id, run_id), sure in self._history.runs.items():
            if dag_id in self._plan.others:
                continue
            if sure and (dag_id, run_id) not in stored:
                yield f"{dag_id}, run {run_id}: it was triggered and is not stored"
        for (dag_id, run_id), run in stored.items():
            if dag_id not in self._plan.dags:
                yield f"{dag_id}, run {run_id}: there is no such DAG in the plan"
            elif run.run_type != "scheduled" and (dag_id, run_id) not in self._history.runs:
                yield f"{dag_id}, run {run_id}: nobody asked for it"
        for dag in self._plan.dags.values():
            dates = Counter(
                run.logical_date for run in self._records.runs if (run.dag_id, run.run_type) == (dag.dag_id, "scheduled")
            )
            planned = Counter() if dag.schedule is None else Counter(date.timestamp() for date in dag.schedule.dates)
            yield from (f"{dag.dag_id}: no run was made for {date}" for date in sorted((planned - dates).elements()))
            yield from (f"{dag.dag_id}: a run for {date} too many" for date in sorted((dates - planned).elements()))

    def _instances(self, dag: PlannedDag, run: StoredRun, instances: Iterable[StoredInstance]) -> Iterator[str]:
        states = {instance.key[2]: instance.state for instance in instances}
        open_ = self._expanded_or_not(dag, run, states)
        there = Counter(
            (instance.key[2], instance.key[3])
            for instance in instances
            if instance.state != "removed" and instance.key[2] not in open_
        )
        planned = Counter(instance for instance in dag.instances(states) if instance[0] not in open_)
        yield from (f"{_label((dag.dag_id, run.run_id, *one))} is missing" for one in sorted(planned - there))
        if run.state in FINISHED:
            yield from (f"{_label((dag.dag_id, run.run_id, *one))} is not planned" for one in sorted(there - planned))

    def _expanded_or_not(self, dag: PlannedDag, run: StoredRun, states: Mapping[str, str]) -> set[str]:
        """Mapped tasks whose list a person took away after it was made, or before: marked, or cleared and then not made again."""
        actions = self._actions[run.dag_id, run.run_id]
        marked = {task for action in actions if action.kind == "mark" for task in action.tasks}
        undone = {task for action in actions if action.kind == "clear" for task in action.tasks if states.get(task) != "success"}
        return {
            one.task_id
            for one in dag.tasks
            if one.is_mapped and one.over is not None and (one.task_id in marked or one.over in marked | undone)
        }

    # Tries

    def _tries(self, found: Findings, task: PlannedTask, one: StoredInstance) -> None:
        if task.does == "empty":
            if one.state == "failed":
                found.failed_without_cause.append(f"{_label(one.key)} does nothing and failed")
            return
        by_try: defaultdict[int, list[Execution]] = defaultdict(list)
        for execution in self._ran.get(one.key, ()):
            by_try[execution.try_number].append(execution)
        for number in sorted(by_try.keys() | one.tries.keys()):
            self._try(found, task, one, number, by_try[number])
        if one.state == "failed" and one.try_number <= task.retries and not self._touched(one.key):
            found.failed_without_cause.append(f"{_label(one.key)} failed for good in try {one.try_number}, with retries left")

    def _try(self, found: Findings, task: PlannedTask, one: StoredInstance, number: int, executions: list[Execution]) -> None:
        stored = one.tries.get(number)
        state = "not known" if stored is None else stored.state
        label = f"{_label(one.key)}: try {number}"
        done = [execution for execution in executions if execution.outcome == "done"]
        if done:
            excused = any(self._excused(execution) or self._marked_since(execution) for execution in executions)
            if state != "success" and not excused:
                found.lost_success.append(f"{label} was done by {done[0].process} and is {state}{_why(stored)}")
            return
        if stored is None or self._cause(task, one, number, stored, executions):
            return
        if state in {"failed", "up_for_retry"}:
            found.failed_without_cause.append(f"{label} is {state}{_why(stored)}")
        elif state == "skipped" and (executions or stored.start is not None):
            found.skipped_without_cause.append(f"{label} was skipped{_why(stored)}")

    def _cause(self, task: PlannedTask, one: StoredInstance, number: int, stored: StoredTry, executions: list[Execution]) -> bool:
        """Whether the plan or the history explains why this try did not succeed."""
        planned = {"raised": {"failed", "up_for_retry"}, "skipped": {"skipped"}}.get(task.ends(number), set())
        if stored.state in planned and any(execution.outcome == task.ends(number) for execution in executions):
            return True
        if any(self._excused(execution) or self._marked_since(execution) for execution in executions):
            return True
        # It was claimed and did not come as far as its code, or was cut off from the ledger.
        start = stored.start if stored.start is not None else stored.ended
        if start is None:
            return False
        end = stored.ended if stored.ended is not None else start
        return self._harmed(stored.process, None, start, end) or self._stopped(one.key, start, end)

    # Trigger rules

    def _verdict(self, found: Findings, dag: PlannedDag, task: PlannedTask, one: StoredInstance, run: list[StoredInstance]) -> None:
        if one.state not in FINISHED or one.state == "removed" or self._unsure(dag, one.key):
            return
        above = [other for other in run if other.key[2] in task.upstream and _relevant(dag, task, one, other)]
        if any(other.state not in FINISHED for other in above):
            return  # it is stuck, which is counted elsewhere
        allowed = verdicts(task.rule, [other.state for other in above])
        seen = ", ".join(f"{state} {count}" for state, count in sorted(Counter(other.state for other in above).items())) or "none"
        started = bool(self._ran.get(one.key)) or (one.state in {"success", "failed"})
        text = f"{_label(one.key)} is {one.state}, by {task.rule} over {seen}"
        if one.state == "upstream_failed" and FAIL not in allowed:
            found.failed_without_cause.append(text)
        elif one.state == "skipped" and not started and SKIP not in allowed:
            found.skipped_without_cause.append(text)
        elif started and RUN not in allowed:
            found.out_of_order.append(f"{text}: it must not run")

    def _unsure(self, dag: PlannedDag, key: Key) -> bool:
        """Whether a user changed an upstream task, perhaps after this task was decided."""
        return any(key[2] in dag.with_descendants(action.tasks) for action in self._actions[key[:2]])

    def _end(self, found: Findings, dag: PlannedDag, run: StoredRun, instances: list[StoredInstance]) -> None:
        if any(action.kind == "mark" for action in self._actions[run.dag_id, run.run_id]):
            return  # perhaps after it had ended, which changes only the task instance
        leaves = {instance.state for instance in instances if instance.key[2] in dag.leaves}
        bad = bool(leaves & {"failed", "upstream_failed"})
        if run.state == "failed" and not bad:
            found.failed_without_cause.append(f"{run.dag_id}, run {run.run_id}: failed, and no leaf task did")
        elif run.state == "success" and bad:
            found.failed_without_cause.append(f"{run.dag_id}, run {run.run_id}: success, and a leaf task failed")

    # Values

    def _values(self, task: PlannedTask, one: StoredInstance) -> Iterator[str]:
        if task.does in {"empty", "pokes", "waits"}:
            return
        effective = [e for e in self._ran.get(one.key, ()) if e.try_number == one.try_number and e.outcome == "done"]
        if one.state == "success" and effective and one.result != effective[-1].returned:
            yield f"{_label(one.key)} returned {effective[-1].returned!r}, and {one.result!r} is stored"
        if one.state != "success" and one.result is not None and not self._touched(one.key):
            yield f"{_label(one.key)} is {one.state}, and {one.result!r} is stored"
        for execution in effective:
            known, expected = self._given(task, one.key)
            if known and execution.given != expected and not self._unsure(self._plan.dags[one.key[0]], one.key):
                yield f"{_label(one.key)} got {execution.given!r} instead of {expected!r}"

    def _given(self, task: PlannedTask, key: Key) -> tuple[bool, object]:
        """The input of a task, if it is known."""
        dag_id, run_id, _, index = key
        if task.takes is not None:
            peer = task.group is not None and self._plan.dags[dag_id].task[task.takes].group == task.group
            source = self._stored.get((dag_id, run_id, task.takes, index if peer else -1))
            if source is None or source.state != "success":
                return False, None
            done = [e for e in self._ran.get(source.key, ()) if e.try_number == source.try_number and e.outcome == "done"]
            return bool(done), done[-1].returned if done else None
        if task.does == "item":
            return True, index if task.over is None else f"{run_id}:{index}"
        return True, None

    # Overlaps

    def _tasks(self, executions: Iterable[Execution]) -> Iterator[tuple[Key, PlannedTask]]:
        for key in {one.key for one in executions}:
            if key[0] in self._plan.dags and key[2] in self._plan.dags[key[0]].task:
                yield key, self._plan.dags[key[0]].task[key[2]]

    def _overlaps(self) -> Iterator[Overlap]:
        for key, rows in self._ran.items():
            for place, later in enumerate(rows):
                for earlier in rows[:place]:
                    if earlier.id not in later.beside and not (earlier.ended is not None and earlier.ended > later.start):
                        continue
                    ends = [end for end in (earlier.ended, later.ended) if end is not None]
                    text = f"{_label(key)}: {_where(earlier)} beside {_where(later)}"
                    excused = self._harmed(earlier.process, earlier.child, earlier.start, later.start)
                    yield Overlap(text, min(ends) - later.start if ends else None, excused)


def _relevant(dag: PlannedDag, task: PlannedTask, one: StoredInstance, other: StoredInstance) -> bool:
    """Inside a mapped group only the instance of the same index counts."""
    if task.group is not None and one.key[3] >= 0 and dag.task[other.key[2]].group == task.group:
        return other.key[3] in {one.key[3], -1}
    return True


def _over(executions: list[Execution], limit: int, weigh: Callable[[Execution], int], name: str) -> list[str]:
    """Moments at which more ran than may, one for each time it begins."""
    moves: list[tuple[float, int, Execution]] = []
    for execution in executions:
        if execution.ended is not None:
            weight = weigh(execution)
            moves += [(execution.start, weight, execution), (execution.ended, -weight, execution)]
    found, now, over = [], 0, False
    for at, weight, execution in sorted(moves, key=lambda move: (move[0], move[1])):
        now += weight
        if now > limit and not over:
            found.append(f"{name} of {limit}: {now} ran at {at:.3f}, when {_label(execution.key)} began")
        over = now > limit
    return found


def _where(one: Execution) -> str:
    return f"try {one.try_number} on {one.process}"


def _why(stored: StoredTry | None) -> str:
    return "" if stored is None or not stored.reason else f" ({stored.reason}; worker {stored.process or 'none'})"


def _label(key: Key) -> str:
    dag_id, run_id, task_id, index = key
    return f"{dag_id}.{task_id}{'' if index < 0 else f'[{index}]'} (run {run_id})"
