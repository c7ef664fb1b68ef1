"""A map of 10,000 in one run beside 50 DAGs that run each second, with three schedulers: no other DAG waits for the map."""

from datetime import UTC, datetime, timedelta
from statistics import quantiles
from typing import Any

import pytest
from support.stacks import Stack, StackFactory
from support.waiting import eventually

from scheduler.store.db import database

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.alone]

INSTANCES = 10_000
TICKING = 50
#: Ticks of each DAG that count: from the trigger of the map on.
TICKS = 12

TICKS_FILE = """
from datetime import datetime, timedelta
from paceline import DAG
from paceline.operators import EmptyOperator

for number in range({ticking}):
    with DAG(f"tick_{{number:02}}", schedule=timedelta(seconds=1), start_date=datetime.fromisoformat({start!r}), catchup=True):
        EmptyOperator(task_id="only")
"""
MAP_FILE = """
from paceline import DAG, task

@task
def items():
    return list(range({instances}))

@task
def each(item):
    return None

with DAG("map", schedule=None):
    each.expand(item=items())
"""


def rows(stack: Stack, statement: str, **parameters: Any) -> list[Any]:
    engine = database.create(stack.settings)
    try:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql(statement, parameters))
    finally:
        engine.dispose()


def test_other_dags_are_not_delayed_and_the_map_is_expanded_once(stack_factory: StackFactory) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=8)
    files = {
        "ticks.py": TICKS_FILE.format(ticking=TICKING, start=start.isoformat()),
        "map.py": MAP_FILE.format(instances=INSTANCES),
    }
    stack = stack_factory(files, schedulers=3, workers=(("default", 4),))
    eventually(
        lambda: len(rows(stack, "select 1 from dag_run where dag_id like 'tick%%' and state = 'success'")) >= TICKING, timeout=120
    )

    stack.json("dags", "trigger", "map")
    [(began,)] = rows(stack, "select queued_at from dag_run where dag_id = 'map'")
    until = began + timedelta(seconds=TICKS)
    eventually(
        lambda: rows(stack, "select min(t) > %(until)s from (select max(run_after) as t from dag_run"
                            " where dag_id like 'tick%%' and state = 'success' group by dag_id) n", until=until)[0][0],
        timeout=120,
    )  # fmt: skip

    assert rows(stack, "select count(*), count(distinct map_index), max(map_index) from task_instance where task_id = 'each'") == [
        (INSTANCES, INSTANCES, INSTANCES - 1)
    ]
    # From the moment a run is due until its task is ready for a slot: all that the schedulers decide.
    delays = [
        row[0]
        for row in rows(
            stack,
            "select extract(epoch from t.scheduled_at - r.run_after)::float"
            " from dag_run r join task_instance t on t.dag_run_id = r.id"
            " where r.dag_id like 'tick%%' and r.run_after between %(began)s and %(until)s",
            began=began, until=until,
        )
    ]  # fmt: skip
    assert len(delays) >= TICKING * (TICKS - 1)
    p50, p95 = (quantiles(delays, n=100)[at] for at in (49, 94))
    print(f"scheduling delay of {len(delays)} runs: p50 {p50:.3f} s, p95 {p95:.3f} s")
    assert p95 < 1.0
