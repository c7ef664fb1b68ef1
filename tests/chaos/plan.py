"""The expected work of every task of a chaos run. DAG files are written from it, and the checker compares the outcome with it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class PlannedTask:
    """One task. `over` names the task whose list it is mapped over; without it, a mapped task is mapped over a literal."""

    task_id: str
    #: A function of dag_files.py. `empty` leaves no trace in the ledger.
    does: str = "work"
    seconds: float = 0.0
    #: Tries that fail before one succeeds, of `fails_first`.
    failing_tries: int = 0
    retries: int = 5
    retry_delay_s: float = 0.3
    rule: str = "all_success"
    upstream: tuple[str, ...] = ()
    #: The upstream task whose return value it reads and writes into the ledger.
    takes: str | None = None
    pool: str = "default_pool"
    pool_slots: int = 1
    weight: int | None = None
    queue: str | None = None
    #: Instances of a mapped task, or entries of the list that `lists` returns.
    count: int | None = None
    over: str | None = None
    group: str | None = None
    limit: tuple[str, int] | None = None
    depends_on_past: bool = False

    @property
    def is_mapped(self) -> bool:
        return self.count is not None and self.does != "lists"

    def ends(self, try_number: int) -> str:
        """How the code of a try is to end, as the ledger calls it: done, raised or skipped."""
        if self.does == "fails" or (self.does == "fails_first" and try_number <= self.failing_tries):
            return "raised"
        return "skipped" if self.does == "skips" else "done"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Runs at a fixed interval, the first and the last one by their logical dates; with catchup, so none may be left out."""

    start: datetime
    end: datetime
    interval: timedelta

    @property
    def dates(self) -> list[datetime]:
        return [self.start + n * self.interval for n in range(int((self.end - self.start) / self.interval) + 1)]


@dataclass(frozen=True, kw_only=True)
class PlannedDag:
    """One DAG; upstream tasks come before their downstream tasks."""

    dag_id: str
    tasks: tuple[PlannedTask, ...]
    max_active_runs: int = 16
    max_active_tasks: int = 64
    schedule: Schedule | None = None

    @cached_property
    def task(self) -> Mapping[str, PlannedTask]:
        return {one.task_id: one for one in self.tasks}

    @cached_property
    def leaves(self) -> frozenset[str]:
        return frozenset(self.task) - {above for one in self.tasks for above in one.upstream}

    def with_descendants(self, task_ids: Iterable[str]) -> frozenset[str]:
        """These tasks and all below them."""
        found = set(task_ids)
        for one in self.tasks:
            if found.intersection(one.upstream):
                found.add(one.task_id)
        return frozenset(found)

    def instances(self, states: Mapping[str, str]) -> set[tuple[str, int]]:
        """The task instances of a run whose list-making tasks ended in these states: (task id, map index)."""
        found = set()
        for one in self.tasks:
            count = one.count if one.is_mapped and (one.over is None or states.get(one.over) == "success") else None
            found |= {(one.task_id, index) for index in (range(count) if count else [-1])}
        return found


@dataclass(frozen=True)
class Plan:
    """All DAGs of a chaos run by id, and the slots of their pools."""

    dags: Mapping[str, PlannedDag]
    pools: Mapping[str, int]
    parallelism: int
    #: DAGs that the plan does not describe, see chaos/corners.py.
    others: frozenset[str] = frozenset()

    @staticmethod
    def of(dags: Iterable[PlannedDag], pools: Mapping[str, int], parallelism: int, others: Iterable[str] = ()) -> "Plan":
        return Plan({dag.dag_id: dag for dag in dags}, dict(pools), parallelism, frozenset(others))

    def groups(self) -> dict[str, list[PlannedDag]]:
        """DAGs by the file they are written into: pool children read each file once."""
        found: defaultdict[str, list[PlannedDag]] = defaultdict(list)
        for number, one in enumerate(self.dags.values()):
            found[f"chaos_{number // PER_FILE + 1}.py"].append(one)
        return found


PER_FILE = 5
