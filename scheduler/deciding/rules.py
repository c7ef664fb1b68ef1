"""The rules that decide about a task: trigger rules by its direct upstream tasks, and depends_on_past by the previous run. Pure.

Trigger rules are those of Airflow (airflow/ti_deps/deps/trigger_rule_dep.py), with the same timing: a rule decides as soon as no
further state can change its result. Beside other upstream tasks, a removed one does not count. In Airflow it meets only some of
the rules.
"""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.states import FAILURES, PASSED, Before
from paceline.states import TaskState as S
from scheduler.serialized.dag import SerializedDag

#: Maximum number of tasks named in a reason. The others are counted.
MOST_NAMES = 5
#: More upstream task instances than any task has, so that only a decision that needs no other state is made.
MANY = 2**31
SKIPS = frozenset({S.SKIPPED})


@dataclass(frozen=True, slots=True)
class Upstream:
    """The number of direct upstream task instances (`total`), and how many of them are in each final state."""

    total: int
    success: int = 0
    skipped: int = 0
    failed: int = 0
    upstream_failed: int = 0
    removed: int = 0

    @classmethod
    def of(cls, states: Iterable[S], total: int | None = None) -> "Upstream":
        """Count `states`. Pass `total` if they are only some of the upstream task instances."""
        return cls.counted(Counter(states), total)

    @classmethod
    def counted(cls, states: Mapping[S, int], total: int | None = None) -> "Upstream":
        """Create it from counts by state."""
        return cls(
            total=sum(states.values()) if total is None else total,
            success=states.get(S.SUCCESS, 0),
            skipped=states.get(S.SKIPPED, 0),
            failed=states.get(S.FAILED, 0),
            upstream_failed=states.get(S.UPSTREAM_FAILED, 0),
            removed=states.get(S.REMOVED, 0),
        )

    @property
    def done(self) -> int:
        return self.success + self.skipped + self.failed + self.upstream_failed + self.removed

    @property
    def all_done(self) -> bool:
        return self.done >= self.total

    @property
    def all_skipped(self) -> bool:
        """Whether all were skipped. Removed ones do not count, and only removed ones are not "all"."""
        return 0 < self.skipped == self.total - self.removed

    @property
    def bad(self) -> int:
        return self.failed + self.upstream_failed


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision about a task, with its reason. `state` is SCHEDULED (may run), SKIPPED, UPSTREAM_FAILED or None (wait)."""

    state: S | None
    reason: str
    #: The reason is that `number` of the upstream tasks are in one of these states.
    states: frozenset[S] = frozenset()
    number: int = 0

    def naming(self, names: Sequence[str]) -> str:
        """Return the reason with the names of upstream tasks, at most MOST_NAMES of them."""
        shown = ", ".join(names[:MOST_NAMES])
        more = self.number - min(len(names), MOST_NAMES)
        return f"{self.reason}: {shown}{f' and {more} more' if more > 0 else ''}" if shown else self.reason


def decide(rule: str, upstream: Upstream) -> Verdict:
    """Apply a trigger rule. A task without upstream tasks may always run."""
    if upstream.total == 0 or rule == "always":
        return Verdict(S.SCHEDULED, "nothing to wait for")
    return RULES[rule](upstream)


@functools.cache
def settled_by(rule: str, state: S, *, alone: bool) -> Verdict:
    """The decision that one ended upstream task determines, whatever the others do; `alone`: there are no others."""
    return decide(rule, Upstream.of([state], 1 if alone else MANY))


def below_setups(setups: Upstream, verdict: Verdict) -> Verdict:
    """Combine the verdict of a trigger rule with the indirect setups of the task.

    A setup that did not succeed decides at once, whatever the rule. While one has not ended, the rule can skip or fail the task
    but not run it.
    """
    if setups.bad:
        return _failed(setups.bad, "setup")
    if setups.skipped:
        return _skipped(setups.skipped, "setup")
    if verdict.state is S.SCHEDULED and not setups.all_done:
        return Verdict(None, f"{setups.total - setups.done} of its setups {_have(setups)} not ended")
    return verdict


def needs_sources(sources: Upstream) -> Verdict | None:
    """Return the verdict of the tasks that a task is mapped over, for any trigger rule; None if they do not prevent it."""
    if sources.bad:
        return _failed(sources.bad, "task that it is mapped over", "tasks that it is mapped over")
    if sources.skipped:
        return _skipped(sources.skipped, "task that it is mapped over", "tasks that it is mapped over")
    return None


def decide_teardown(upstream: Upstream, scope: Upstream, setups: Upstream) -> Verdict:
    """Apply all_done_setup_success: a teardown waits for all tasks in its scope, and runs if a setup succeeded."""
    for waited in (upstream, scope, setups):
        if not waited.all_done:
            return _wait(waited)
    if setups.total == setups.removed or setups.success:
        return _run()
    return _skip("all its setups were skipped") if setups.all_skipped else _fail("none of its setups succeeded")


def _run() -> Verdict:
    return Verdict(S.SCHEDULED, "its trigger rule is met")


def _wait(u: Upstream) -> Verdict:
    return Verdict(None, f"{u.total - u.done} of {u.total} upstream {'task' if u.total == 1 else 'tasks'} {_have(u)} not ended")


def _have(waited: Upstream) -> str:
    return "has" if waited.total - waited.done == 1 else "have"


def _skip(why: str) -> Verdict:
    return Verdict(S.SKIPPED, why)


def _fail(why: str) -> Verdict:
    return Verdict(S.UPSTREAM_FAILED, why)


def _failed(number: int, one: str = "upstream task", many: str = "") -> Verdict:
    return Verdict(S.UPSTREAM_FAILED, f"{number} {one if number == 1 else many or one + 's'} failed", FAILURES, number)


def _skipped(number: int, one: str = "upstream task", many: str = "") -> Verdict:
    what = f"{one} was" if number == 1 else f"{many or one + 's'} were"
    return Verdict(S.SKIPPED, f"{number} {what} skipped", SKIPS, number)


def _all_success(u: Upstream) -> Verdict:
    if u.bad:
        return _failed(u.bad)
    if u.skipped:
        return _skipped(u.skipped)
    return _run() if u.all_done else _wait(u)


def _all_failed(u: Upstream) -> Verdict:
    if u.success or u.skipped:
        return _skip("an upstream task did not fail")
    return _run() if u.all_done else _wait(u)


def _all_done(u: Upstream) -> Verdict:
    return _run() if u.all_done else _wait(u)


def _all_skipped(u: Upstream) -> Verdict:
    if u.success or u.bad:
        return _skip("an upstream task was not skipped")
    return _run() if u.all_done else _wait(u)


def _one_success(u: Upstream) -> Verdict:
    if u.success:
        return _run()
    if not u.all_done:
        return _wait(u)
    return _skip("every upstream task was skipped") if u.all_skipped else _fail("no upstream task succeeded")


def _one_failed(u: Upstream) -> Verdict:
    if u.bad:
        return _run()
    return _skip("no upstream task failed") if u.all_done else _wait(u)


def _one_done(u: Upstream) -> Verdict:
    if u.success or u.failed:
        return _run()
    return _skip("no upstream task ran") if u.all_done else _wait(u)


def _none_failed(u: Upstream) -> Verdict:
    if u.bad:
        return _failed(u.bad)
    return _run() if u.all_done else _wait(u)


def _none_failed_min_one_success(u: Upstream) -> Verdict:
    if u.bad:
        return _failed(u.bad)
    if not u.all_done:
        return _wait(u)
    if u.success:
        return _run()
    return _skip("every upstream task was skipped") if u.all_skipped else _fail("no upstream task succeeded")


def _none_skipped(u: Upstream) -> Verdict:
    if u.skipped:
        return _skipped(u.skipped)
    return _run() if u.all_done else _wait(u)


def _all_done_min_one_success(u: Upstream) -> Verdict:
    if u.skipped:
        return _skipped(u.skipped)
    if not u.all_done:
        return _wait(u)
    return _run() if u.success else _fail("no upstream task succeeded")


#: The rules by name. `always` and the teardown rule, which also depends on setups, do not only count direct upstream tasks.
RULES = {
    "all_success": _all_success,
    "all_failed": _all_failed,
    "all_done": _all_done,
    "all_skipped": _all_skipped,
    "one_success": _one_success,
    "one_failed": _one_failed,
    "one_done": _one_done,
    "none_failed": _none_failed,
    "none_failed_min_one_success": _none_failed_min_one_success,
    "none_skipped": _none_skipped,
    "all_done_min_one_success": _all_done_min_one_success,
    "all_done_setup_success": _all_done,
}


def past_relevant(dag: SerializedDag) -> set[str]:
    """Return the tasks of the previous run whose states matter to depends_on_past and wait_for_downstream."""
    task_ids: set[str] = set()
    for no, task in enumerate(dag.tasks):
        if task.depends_on_past:
            task_ids.add(task.task_id)
        if task.wait_for_downstream:
            task_ids |= {dag.tasks[below].task_id for below in dag.downstream[no]}
    return task_ids


def past_waits(dag: SerializedDag, before: Before | None) -> dict[int, str]:
    """Return why tasks must wait for the previous run, by task number. Nothing waits without a previous run."""
    if before is None:
        return {}
    reasons = {}
    for no, task in enumerate(dag.tasks):
        if not task.depends_on_past:
            continue
        # A task may be in some runs only: it was removed for a while, or a start_date or end_date excludes it.
        own = before if task.task_id in before.states else before.earlier.get(task.task_id)
        if own is None:
            if not task.ignore_first_depends_on_past:
                reasons[no] = f"depends_on_past: no earlier run has {task.task_id}, and ignore_first_depends_on_past is False"
            continue
        names = [dag.tasks[below].task_id for below in dag.downstream[no]] if task.wait_for_downstream else []
        late = next((name for name in (task.task_id, *names) if not PASSED.issuperset(own.states.get(name, ()))), None)
        if late is not None:
            rule = "depends_on_past" if late == task.task_id else "wait_for_downstream"
            which = "the previous run" if own is before else "the earlier run"
            reasons[no] = f"{rule}: {late} of {which}, {own.run_id}, is {_shown(own.states[late])}"
    return reasons


def _shown(states: Collection[S]) -> str:
    bad = sorted({state.value for state in states if state not in PASSED})
    return ", ".join("not started" if name == "none" else name for name in bad)
