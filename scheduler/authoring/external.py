"""Questions about runs of other DAGs, and what the answers mean. Pure: whoever holds a database answers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

#: How many task instances (or runs) are in which state; empty for a target that does not exist.
Counts = Mapping[str, int]


class Verdict(StrEnum):
    """What the states of all targets say together."""

    WAITING = "waiting"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A run of a DAG, by logical date or by run id, or one task of it."""

    dag_id: str
    logical_date: datetime | None = None
    run_id: str | None = None
    task_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"dag_id": self.dag_id, "logical_date": self.logical_date, "run_id": self.run_id, "task_id": self.task_id}


def judge(
    answers: Sequence[Counts], *, allowed: Collection[str], skipped: Collection[str] = (), failed: Collection[str] = ()
) -> Verdict:
    """FAILED or SKIPPED as soon as one target is; DONE when all of all targets is in an allowed state."""
    for states, verdict in ((failed, Verdict.FAILED), (skipped, Verdict.SKIPPED)):
        if any(state in states for counts in answers for state in counts):
            return verdict
    done = all(counts and all(state in allowed for state in counts) for counts in answers)
    return Verdict.DONE if done else Verdict.WAITING
