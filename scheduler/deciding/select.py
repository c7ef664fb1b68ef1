"""Which waiting task instances may be queued now: pure, in rank order, within every limit."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler.states import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is free: slots by pool, messages by queue, and overall; and how many of each run and limited task are active."""

    pools: Mapping[str, int]
    queues: defaultdict[str, int]
    active_in_run: Counter[int]
    parallelism: int
    #: By DAG and task, and by run and task; only tasks that have such a limit are counted.
    active_of_task: Counter[tuple[str, str]] = field(default_factory=Counter)
    active_of_task_in_run: Counter[tuple[int, str]] = field(default_factory=Counter)
    #: The limits of those that are counted, as far as they have one of this kind.
    task_limits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    task_in_run_limits: Mapping[tuple[int, str], int] = field(default_factory=dict)

    def without(self, chosen: Collection[Waiting]) -> "Room":
        """What is free when these are active too."""
        pools, queues, active = Counter(self.pools), self.queues.copy(), self.active_in_run.copy()
        of_task, of_task_in_run = self.active_of_task.copy(), self.active_of_task_in_run.copy()
        task_limits, task_in_run_limits = dict(self.task_limits), dict(self.task_in_run_limits)
        for one in chosen:
            pools[one.pool] -= one.pool_slots
            queues[one.queue] -= 1
            active[one.dag_run_id] += 1
            of_task[one.dag_id, one.task_id] += 1
            of_task_in_run[one.dag_run_id, one.task_id] += 1
            if one.task_limit is not None:
                task_limits[one.dag_id, one.task_id] = one.task_limit
            if one.task_in_run_limit is not None:
                task_in_run_limits[one.dag_run_id, one.task_id] = one.task_in_run_limit
        return replace(
            self,
            pools=dict(pools),
            queues=queues,
            active_in_run=active,
            parallelism=self.parallelism - len(chosen),
            active_of_task=of_task,
            active_of_task_in_run=of_task_in_run,
            task_limits=task_limits,
            task_in_run_limits=task_in_run_limits,
        )


def select(waiting: Iterable[Waiting], room: Room, *, limit: int, reserve: bool = True) -> list[Waiting]:
    """Choose in rank order. One that does not fit is passed over and the next is tried, so a full pool stops nobody else.

    With `reserve`, one that fits everywhere but needs more slots than its pool has free holds the pool: nobody that ranks
    below it gets these slots, so that small ones cannot pass it for ever.
    """
    pools, queues, active = dict(room.pools), room.queues.copy(), room.active_in_run.copy()
    of_task, of_task_in_run = room.active_of_task.copy(), room.active_of_task_in_run.copy()
    left = min(limit, room.parallelism)
    chosen: list[Waiting] = []
    for one in sorted(waiting, key=lambda one: (-one.rank, one.id)):
        if len(chosen) >= left:
            break
        task, task_in_run = (one.dag_id, one.task_id), (one.dag_run_id, one.task_id)
        allowed = (
            queues[one.queue] > 0
            and active[one.dag_run_id] < one.run_limit
            and (one.task_limit is None or of_task[task] < one.task_limit)
            and (one.task_in_run_limit is None or of_task_in_run[task_in_run] < one.task_in_run_limit)
        )
        if not allowed:
            continue
        if pools.get(one.pool, 0) < one.pool_slots:
            if reserve:
                pools[one.pool] = 0
            continue
        pools[one.pool] -= one.pool_slots
        queues[one.queue] -= 1
        active[one.dag_run_id] += 1
        of_task[task] += 1
        of_task_in_run[task_in_run] += 1
        chosen.append(one)
    return chosen
