"""Which teardowns run after all other tasks of a run were ended: a table over the states of the setup."""

import pytest
from support.scenario import dag

from paceline.states import FINISHED, UNFINISHED
from paceline.states import TaskState as S
from scheduler.deciding.evaluate import still_to_run

TEARDOWN = {"is_teardown": True, "trigger_rule": "all_done_setup_success", "setups": ("up",), "scope": ("work",)}
SCOPE = dag("d", {"up": [], "work": ["up"], "down": ["work"]}, options={"up": {"is_setup": True}, "down": TEARDOWN})
#: A setup in one of these may have made something, so its teardown runs if it is marked success.
BEGUN = {S.RUNNING, S.SHUTDOWN, S.DEFERRED, S.UP_FOR_RESCHEDULE, S.UP_FOR_RETRY}


@pytest.mark.parametrize("setup", [state for state in S if state is not S.REMOVED])
def test_the_teardown_runs_if_the_setup_succeeded_or_counts_as_such(setup: S) -> None:
    states = {0: {-1: setup}, 1: {-1: S.NONE}, 2: {-1: S.NONE}}
    unfinished = {0} - ({0} if setup in FINISHED else set())

    failed = {(no, -1): S.SKIPPED for no in (*unfinished, 1, 2)}
    success = {(no, -1): S.SUCCESS for no in (0, 1, 2)}

    assert bool(still_to_run(SCOPE, states, failed)) == (setup is S.SUCCESS)
    assert bool(still_to_run(SCOPE, states, success)) == (setup is S.SUCCESS or setup in BEGUN)


@pytest.mark.parametrize("teardown", sorted(UNFINISHED - {S.NONE}))
def test_a_teardown_that_was_decided_to_run_continues(teardown: S) -> None:
    states = {0: {-1: S.SUCCESS}, 1: {-1: S.FAILED}, 2: {-1: teardown}}

    assert still_to_run(SCOPE, states, {(2, -1): S.SKIPPED}) == {(2, -1)}
    assert still_to_run(SCOPE, states | {2: {-1: S.SUCCESS}}, {(2, -1): S.SKIPPED}) == set()
