"""Trigger rules against the formulas of Airflow's table, over every multiset of up to four upstream states."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from paceline.authoring.task_arguments import TriggerRule
from paceline.states import FINISHED
from paceline.states import TaskState as S
from scheduler.deciding.rules import Upstream, decide

LARGEST = 4
RULES = [str(rule) for rule in TriggerRule]


@dataclass(frozen=True)
class Counts:
    """How many upstream task instances there are (n), and how many of those that ended did so in which state."""

    n: int
    s: int
    k: int
    f: int
    uf: int
    r: int

    @property
    def done(self) -> int:
        return self.s + self.k + self.f + self.uf + self.r

    @property
    def all(self) -> bool:
        return self.done >= self.n


Formula = Callable[[Counts], object]

#: rule: when the task may run, and the state otherwise, the first that holds. Without any of these, it waits.
TABLE: dict[str, tuple[Formula, tuple[tuple[Formula, S], ...]]] = {
    "all_success": (
        lambda c: c.n - c.s - c.r == 0,
        ((lambda c: c.uf or c.f, S.UPSTREAM_FAILED), (lambda c: c.k, S.SKIPPED)),
    ),
    "all_failed": (lambda c: c.n - c.f - c.uf - c.r == 0, ((lambda c: c.s or c.k, S.SKIPPED),)),
    "all_done": (lambda c: c.all, ()),
    "all_skipped": (lambda c: c.n - c.k - c.r == 0, ((lambda c: c.s or c.f or c.uf, S.SKIPPED),)),
    "one_success": (
        lambda c: c.s >= 1,
        ((lambda c: c.all and c.k and c.k == c.done - c.r, S.SKIPPED), (lambda c: c.all and c.s == 0, S.UPSTREAM_FAILED)),
    ),
    "one_failed": (lambda c: c.f or c.uf, ((lambda c: c.all, S.SKIPPED),)),
    "one_done": (lambda c: c.s + c.f >= 1, ((lambda c: c.all, S.SKIPPED),)),
    "none_failed": (lambda c: c.n - c.s - c.k - c.r == 0, ((lambda c: c.uf or c.f, S.UPSTREAM_FAILED),)),
    "none_failed_min_one_success": (
        lambda c: c.n - c.s - c.k - c.r == 0 and c.s >= 1,
        (
            (lambda c: c.uf or c.f, S.UPSTREAM_FAILED),
            (lambda c: c.k and c.k == c.n - c.r, S.SKIPPED),
            (lambda c: c.all and c.s == 0, S.UPSTREAM_FAILED),
        ),
    ),
    "none_skipped": (lambda c: c.all and c.k == 0, ((lambda c: c.k, S.SKIPPED),)),
    "all_done_min_one_success": (
        lambda c: c.k == 0 and c.all and c.s >= 1,
        ((lambda c: c.k, S.SKIPPED), (lambda c: c.all and c.s == 0, S.UPSTREAM_FAILED)),
    ),
    # Without setups of its own.
    "all_done_setup_success": (lambda c: c.all, ()),
    "always": (lambda c: True, ()),
}


def expected(rule: str, states: tuple[S, ...]) -> S | None:
    """The answer of the table; a task without upstream tasks may always run."""
    counts = Counts(
        len(states),
        states.count(S.SUCCESS),
        states.count(S.SKIPPED),
        states.count(S.FAILED),
        states.count(S.UPSTREAM_FAILED),
        states.count(S.REMOVED),
    )
    may_run, otherwise = TABLE[rule]
    if not states or may_run(counts):
        return S.SCHEDULED
    return next((state for holds, state in otherwise if holds(counts)), None)


def multisets(kinds: frozenset[S]) -> Iterator[tuple[S, ...]]:
    for count in range(LARGEST + 1):
        yield from itertools.combinations_with_replacement(sorted(kinds), count)


def test_the_table_has_every_rule() -> None:
    assert sorted(TABLE) == sorted(RULES)
    assert len(RULES) == 13


@pytest.mark.parametrize("rule", RULES)
def test_every_multiset_of_up_to_four_upstream_states(rule: str) -> None:
    """All thirteen states, so also every way of not having ended."""
    seen = {states: decide(rule, Upstream.of(states)).state for states in multisets(frozenset(S))}

    assert len(seen) == 2380
    assert {states: (is_, expected(rule, states)) for states, is_ in seen.items() if is_ != expected(rule, states)} == {}


@pytest.mark.parametrize("rule", RULES)
def test_counting_only_those_that_ended_is_the_same(rule: str) -> None:
    """As in a worker that follows: it has the number of upstream tasks, and reads those that ended."""
    for states in multisets(FINISHED | {S.RUNNING}):
        ended = [state for state in states if state in FINISHED]

        assert decide(rule, Upstream.of(ended, total=len(states))).state == expected(rule, states), states


@pytest.mark.parametrize("rule", RULES)
def test_a_verdict_never_changes_when_more_upstream_tasks_end(rule: str) -> None:
    """A worker may decide from its own result alone."""
    ended = (S.SUCCESS, S.SKIPPED, S.FAILED, S.UPSTREAM_FAILED)
    for states in itertools.product((*ended, S.RUNNING), repeat=3):
        early = decide(rule, Upstream.of(states)).state
        if early is None or rule in MAY_STILL_DIFFER:
            continue
        for later in itertools.product(ended, repeat=states.count(S.RUNNING)):
            filler = iter(later)
            full = [next(filler) if state is S.RUNNING else state for state in states]
            assert decide(rule, Upstream.of(full)).state == early, (states, full)


#: Rules that act on the first sign of either of two kinds (all_success: a skip at once, a failure at once): the first wins.
MAY_STILL_DIFFER = {"all_success"}


@pytest.mark.parametrize("rule", RULES)
def test_a_verdict_has_its_reason(rule: str) -> None:
    assert len(decide(rule, Upstream(total=2, success=1)).reason) > 5


@pytest.mark.parametrize("rule", RULES)
def test_removed_upstream_tasks_alone_never_block(rule: str) -> None:
    assert decide(rule, Upstream.of((S.REMOVED, S.REMOVED))).state is not None
