"""How long other tasks wait for a pool process that continues in place: for the rest of its budget and of one task.

The tests compare orders and stored times, which hold however slow the machine is.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from ..conftest import SENT

BUDGET_S = 0.1
LENGTH = 1000
#: Times at which another task arrives.
ARRIVALS = 5
#: The tasks of a chain have one weight. By default it falls along the chain, so messages of the chain that is behind may go first.
ROW = """
with DAG({dag_id!r}, schedule=None):
    chain(*[task(task_id=f"t{{n:04}}", pool={pool!r}, weight_rule="absolute")(lambda: None)() for n in range({length})])
"""
URGENT = """
with DAG("urgent", schedule=None):
    task(task_id="one", pool={pool!r}, priority_weight=9999)(lambda: None)()
"""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a task, in seconds since 1970. Without `by_message`, its process continued with it in place."""

    dag_id: str
    queued_at: float
    dispatched_at: float | None
    started_at: float
    by_message: bool


def starts(bench: Any) -> list[Start]:
    """All starts, in their order. There is one pool process."""
    rows = bench.scenario.rows("""
        select r.dag_id, extract(epoch from t.queued_at)::float8, extract(epoch from t.dispatched_at)::float8,
               extract(epoch from t.started_at)::float8, exists (select from sent s where s.task_instance_id = t.id)
          from task_instance t join dag_run r on r.id = t.dag_run_id order by t.started_at
    """)
    return [Start(*row) for row in rows]


def series(found: list[Start]) -> list[list[Start]]:
    """The tasks that the process ran from one message to the next."""
    apart: list[list[Start]] = []
    for one in found:
        if one.by_message:
            apart.append([])
        apart[-1].append(one)
    return apart


def keeps_to_its_budget(one: list[Start]) -> bool:
    """Whether the process continued only while its budget lasted: each task but the last started, and ended, within it."""
    return all(task.started_at < one[0].started_at + BUDGET_S for task in one[:-1])


@pytest.fixture
def process(bench: Any) -> Any:
    """The bench with one pool process, and a table of the task instances that were queued for a message."""
    bench.scenario.sql(SENT)
    bench.worker(PACELINE_WORKER_IN_PLACE_SECONDS=str(BUDGET_S))
    return bench


def arrive_in_the_middle(bench: Any, pool: str) -> list[float]:
    """Run a chain, and meanwhile, again and again, a DAG of higher rank. Returns the times from which on each one was waiting."""
    bench.dag(ROW.format(dag_id="row", pool=pool, length=LENGTH), "row.py")
    bench.dag(URGENT.format(pool=pool), "urgent.py")
    row = bench.scenario.trigger("row", run_id="r")
    bench.wait(row, t0010="success")
    waiting_since = []
    for number in range(ARRIVALS):
        urgent = bench.scenario.trigger("urgent", run_id=f"r{number}")
        bench.scenario.turn()
        waiting_since.append(bench.scenario.rows("select extract(epoch from clock_timestamp())::float8")[0][0])
        bench.wait(urgent)
    bench.wait(row)
    return waiting_since


def test_a_message_of_higher_rank_waits_for_one_series_at_most(process: Any) -> None:
    arrive_in_the_middle(process, "default_pool")

    found = starts(process)
    assert sum(not one.by_message for one in found) > LENGTH / 4
    assert all(keeps_to_its_budget(one) for one in series(found))
    urgent = [one for one in found if one.dag_id == "urgent"]
    assert urgent[0].started_at < max(one.started_at for one in found if one.dag_id == "row")
    for one in urgent:
        # It has no time of dispatch if it started before that was stored.
        sent_at = one.dispatched_at or one.started_at
        between = [other for other in found if sent_at < other.started_at < one.started_at and other.by_message]
        # Its message was in the queue already.
        assert all(other.queued_at < sent_at for other in between)
        assert len(between) <= 1


def test_a_task_of_higher_rank_gets_the_only_slot_of_a_pool_after_one_series(process: Any) -> None:
    process.scenario.pool("narrow", 1)

    waiting_since = arrive_in_the_middle(process, "narrow")

    found = starts(process)
    assert sum(not one.by_message for one in found) > LENGTH / 4
    assert all(keeps_to_its_budget(one) for one in series(found))
    urgent = [one for one in found if one.dag_id == "urgent"]
    assert urgent[0].started_at < max(one.started_at for one in found if one.dag_id == "row")
    for since, one in zip(waiting_since, urgent, strict=True):
        # That of a report which had begun before.
        assert sum(since < other.started_at < one.started_at and other.by_message for other in found) <= 1


def test_two_chains_take_turns_on_one_process(process: Any) -> None:
    runs = []
    for dag_id in ("left", "right"):
        process.dag(ROW.format(dag_id=dag_id, pool="default_pool", length=400), f"{dag_id}.py")
        runs.append(process.scenario.trigger(dag_id, run_id="r"))
    for run in runs:
        process.wait(run)

    found = starts(process)
    apart = series(found)
    assert all(keeps_to_its_budget(one) for one in apart)
    turns = [one[0].dag_id for one in apart]
    both = range(max(turns.index(dag_id) for dag_id in set(turns)), len(turns) - max(map(turns[::-1].index, set(turns))))
    assert len(both) > 2
    assert all(before != after for before, after in pairwise(turns[both.start : both.stop]))
