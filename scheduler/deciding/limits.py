"""The limits on task instances that are active at once: the name of each, its key, and the largest number.

Selection, `tasks why` and `doctor --deep` use them. store/queueing/limits has the SQL that counts towards each.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import NewType

from scheduler.states import Waiting

#: A limit is identified by the name of its setting or argument.
Limit = NewType("Limit", str)
#: A limit, and the key of the task instances that share it.
Place = tuple[Limit, Hashable]

POOL = Limit("pool")
PARALLELISM = Limit("core.parallelism")
RUN = Limit("max_active_tasks")
TASK_IN_RUN = Limit("max_active_tis_per_dagrun")
TASK = Limit("max_active_tis_per_dag")
#: Counts runs: those of a DAG without its backfills, or those of one backfill.
RUNS = Limit("max_active_runs")


def own_limits(waiting: Waiting) -> tuple[tuple[Place, int | None], ...]:
    """The limits that come with a task instance, and how many may be active under each; None is no limit."""
    return (
        ((RUN, waiting.dag_run_id), waiting.run_limit),
        ((TASK_IN_RUN, (waiting.dag_run_id, waiting.task_id)), waiting.task_in_run_limit),
        ((TASK, (waiting.dag_id, waiting.task_id)), waiting.task_limit),
    )


def reached(active: Mapping[Place, int], limits: Iterable[tuple[Place, int | None]]) -> list[Place]:
    """The limits that are full."""
    return [place for place, most in limits if most is not None and active.get(place, 0) >= most]
