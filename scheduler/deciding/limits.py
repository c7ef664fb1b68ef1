"""The limits on task instances that are active at once: the name of each, its key, and the largest number.

Selection, `tasks why` and `doctor --deep` use them. store/queueing/limits has the SQL that counts towards each.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NewType

#: A limit is identified by the name of its setting or argument.
Limit = NewType("Limit", str)
#: A limit, and the key of the task instances that share it.
Place = tuple[Limit, Hashable]


@dataclass(frozen=True, slots=True)
class Own:
    """A limit that comes with a task instance: the attributes of Waiting that are its key, and the one with its number."""

    key: tuple[str, ...]
    most: str


POOL = Limit("pool")
PARALLELISM = Limit("core.parallelism")
RUN = Limit("max_active_tasks")
TASK_IN_RUN = Limit("max_active_tis_per_dagrun")
TASK = Limit("max_active_tis_per_dag")
#: Counts runs: either of a DAG without its backfills, or of one backfill.
RUNS = Limit("max_active_runs")
OWN: Mapping[Limit, Own] = {
    RUN: Own(("dag_run_id",), "run_limit"),
    TASK_IN_RUN: Own(("dag_run_id", "task_id"), "task_in_run_limit"),
    TASK: Own(("dag_id", "task_id"), "task_limit"),
}
_READERS = {limit: (attrgetter(*own.key), attrgetter(own.most)) for limit, own in OWN.items()}


def own_limits(waiting: object, limits: Iterable[Limit] = tuple(OWN)) -> list[tuple[Place, int | None]]:
    """These limits of a Waiting or another object with its attributes, and how many each allows; None is no limit."""
    return [((limit, _READERS[limit][0](waiting)), _READERS[limit][1](waiting)) for limit in limits]


def reached(active: Mapping[Place, int], limits: Iterable[tuple[Place, int | None]]) -> list[Place]:
    """The limits that are full."""
    return [place for place, most in limits if most is not None and active.get(place, 0) >= most]
