"""Trigger rules against a second, slower reading of Airflow's table."""

import itertools

import pytest

from scheduler.authoring.trigger_rule import TriggerRule
from scheduler.deciding.rules import Upstream, decide
from scheduler.states import TaskState as S

ENDED = (S.SUCCESS, S.SKIPPED, S.FAILED, S.UPSTREAM_FAILED)
OPEN = S.RUNNING
BAD = {S.FAILED, S.UPSTREAM_FAILED}


def expected(rule: str, states: tuple[S, ...]) -> S | None:
    """The table of the reference, one line a rule: may run / else set, over the states of all upstream task instances."""
    ended = [state for state in states if state is not OPEN]
    everyone = len(ended) == len(states)
    success, skipped = ended.count(S.SUCCESS), ended.count(S.SKIPPED)
    bad = sum(state in BAD for state in ended)
    run, wait = S.SCHEDULED, None
    if not states:
        return run
    table = {
        "all_success": S.UPSTREAM_FAILED if bad else S.SKIPPED if skipped else run if everyone else wait,
        "all_failed": S.SKIPPED if success or skipped else run if everyone else wait,
        "all_done": run if everyone else wait,
        "all_done_setup_success": run if everyone else wait,
        "all_skipped": S.SKIPPED if success or bad else run if everyone else wait,
        "one_success": run if success else wait if not everyone else S.SKIPPED if skipped == len(states) else S.UPSTREAM_FAILED,
        "one_failed": run if bad else S.SKIPPED if everyone else wait,
        "one_done": run if success or S.FAILED in ended else S.SKIPPED if everyone else wait,
        "none_failed": S.UPSTREAM_FAILED if bad else run if everyone else wait,
        "none_failed_min_one_success": (
            S.UPSTREAM_FAILED if bad else wait if not everyone else run if success else S.SKIPPED
        ),
        "none_skipped": S.SKIPPED if skipped else run if everyone else wait,
        "all_done_min_one_success": S.SKIPPED if skipped else wait if not everyone else run if success else S.UPSTREAM_FAILED,
        "always": run,
    }  # fmt: skip
    return table[rule]


@pytest.mark.parametrize("rule", [str(rule) for rule in TriggerRule])
def test_every_multiset_of_up_to_four_upstream_states(rule: str) -> None:
    for count in range(5):
        for states in itertools.combinations_with_replacement((*ENDED, OPEN), count):
            upstream = Upstream.of((state for state in states if state is not OPEN), total=count)

            assert decide(rule, upstream).state == expected(rule, states), states


@pytest.mark.parametrize("rule", [str(rule) for rule in TriggerRule])
def test_a_verdict_never_changes_when_more_upstream_tasks_end(rule: str) -> None:
    """What lets a worker decide from its own result alone."""
    for states in itertools.product((*ENDED, OPEN), repeat=3):
        early = decide(rule, Upstream.of((state for state in states if state is not OPEN), total=3)).state
        if early is None:
            continue
        for later in itertools.product(ENDED, repeat=states.count(OPEN)):
            filler = iter(later)
            full = [next(filler) if state is OPEN else state for state in states]
            if rule in MAY_STILL_DIFFER:
                continue
            assert decide(rule, Upstream.of(full)).state == early, (states, full)


#: Rules that act on the first sign of either of two kinds (all_success: a skip at once, a failure at once): the first wins.
MAY_STILL_DIFFER = {"all_success"}


@pytest.mark.parametrize("rule", [str(rule) for rule in TriggerRule])
def test_a_verdict_says_why(rule: str) -> None:
    assert len(decide(rule, Upstream(total=2, success=1)).reason) > 5
