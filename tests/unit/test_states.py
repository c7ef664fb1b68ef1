"""Sets of states, and their SQL."""

from typing import get_args

import pytest

from paceline.states import (
    ACTIVE,
    FINISHED,
    IDLE,
    MARKABLE,
    OPEN,
    REPROCESS,
    RUN_FINISHED,
    RUN_UNFINISHED,
    UNFINISHED,
    RunState,
    States,
    TaskState,
)
from scheduler.api.models.dag_runs import DagRunPatch
from scheduler.api.models.records import BackfillBody
from scheduler.api.models.task_instances import MARKABLE as MARKABLE_TYPE
from scheduler.store.read import pictures


def test_the_types_and_orders_of_states_are_complete() -> None:
    assert set(get_args(MARKABLE_TYPE)) == MARKABLE
    state, _ = get_args(DagRunPatch.model_fields["state"].annotation)
    assert set(get_args(state)) == RUN_FINISHED | {RunState.QUEUED}
    assert set(get_args(BackfillBody.model_fields["reprocess_behavior"].annotation)) == set(REPROCESS)
    assert set(pictures.WORST_FIRST) == set(TaskState)


def test_the_list_is_in_the_order_of_the_enum() -> None:
    assert ACTIVE.sql == "('queued', 'running', 'deferred', 'shutdown')"
    assert RUN_UNFINISHED.sql == "('queued', 'running')"


def test_a_set_with_none_has_no_list() -> None:
    for states in (UNFINISHED, frozenset[TaskState]()):
        with pytest.raises(ValueError, match="NONE is stored as NULL"):
            States(states)


def test_each_state_but_none_is_idle_or_with_a_worker_or_finished() -> None:
    assert IDLE | {TaskState.RUNNING, TaskState.SHUTDOWN} == OPEN
    assert {TaskState.NONE} | OPEN | FINISHED == set(TaskState)
