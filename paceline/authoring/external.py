"""Conditions on the runs of other DAGs: the targets, and the verdict on their states. Pure: the caller reads the states."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from paceline.states import TaskState

#: The number of task instances (or runs) by state; empty for a target that does not exist.
Counts = Mapping[str, int]


class ExternalResult(StrEnum):
    """The result of a condition on all of its targets."""

    WAITING = "waiting"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A run of a DAG, by logical date or by run ID, or one task or task group of it, as the version of that run has it."""

    dag_id: str
    logical_date: datetime | None = None
    run_id: str | None = None
    task_id: str | None = None
    group_id: str | None = None


def judge(
    answers: Sequence[Counts], *, allowed: Collection[str], skipped: Collection[str] = (), failed: Collection[str] = ()
) -> ExternalResult:
    """FAILED or SKIPPED if an instance of any target is in such a state; DONE if all of them are in an allowed state.

    A removed instance will never run, so nothing waits for it.
    """
    for states, verdict in ((failed, ExternalResult.FAILED), (skipped, ExternalResult.SKIPPED)):
        if any(state in states for counts in answers for state in counts):
            return verdict
    done = all(counts and all(state in allowed or state == TaskState.REMOVED for state in counts) for counts in answers)
    return ExternalResult.DONE if done else ExternalResult.WAITING
