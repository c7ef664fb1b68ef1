"""The records that the checker compares: executions from the ledger, and the stored state. Tests can write them directly."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: DAG id, run id, task id, map index.
Key = tuple[str, str, str, int]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One pass through the code of a task, as the task itself wrote it down. `ended` is None if it was killed."""

    key: Key
    try_number: int
    process: str = ""
    child: int = 0
    start: float = 0.0
    ended: float | None = None
    outcome: str | None = None
    given: Any = None
    returned: Any = None
    id: str = ""
    #: Executions of the same task instance that were still there when this one began.
    beside: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StoredTry:
    """A try as PostgreSQL has it; `process` is the name of the worker that claimed it, "" if none did."""

    state: str
    process: str = ""
    start: float | None = None
    ended: float | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class StoredInstance:
    """A task instance with all its tries by number; `result` is its return value."""

    key: Key
    state: str
    try_number: int
    tries: Mapping[int, StoredTry] = field(default_factory=dict)
    result: Any = None


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run; `logical_date` by time.time()."""

    dag_id: str
    run_id: str
    state: str
    run_type: str = "manual"
    logical_date: float = 0.0


@dataclass(frozen=True)
class Records:
    """All of them; executions in the order in which they began."""

    runs: Sequence[StoredRun]
    instances: Sequence[StoredInstance]
    executions: Sequence[Execution]

    def of(self) -> Mapping[Key, list[Execution]]:
        found: defaultdict[Key, list[Execution]] = defaultdict(list)
        for execution in self.executions:
            found[execution.key].append(execution)
        return found
