"""People clear, mark and change the DAG while schedulers decide and workers report: no deadlock, and every run ends."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from support.run_actions import clear_, mark_, schedule_and_work
from support.scenario import Scenario, dag

from paceline.states import RunState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.actions import mark
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Tasks

WIDTH = 6
RUNS = 4
DURATION_S = 4.0


def version(number: int) -> SerializedDag:
    """A fan-out and fan-in whose tasks change places, and one of which comes and goes."""
    middle = [f"m{place}" for place in range(WIDTH)]
    random.Random(number).shuffle(middle)
    extra = {"extra": [middle[0]]} if number % 2 else {}
    edges = {"first": [], **{name: ["first"] for name in middle}, "join": middle, **extra}
    return dag("d", edges, disable_bundle_versioning=True, description=str(number), rules={"join": "all_done"})


def test_actions_schedulers_and_workers_never_wait_for_each_other_in_a_circle(make_scenario: Callable[..., Scenario]) -> None:
    people, *engines = [make_scenario() for _ in range(4)]
    people.add(version(0))
    for number in range(RUNS):
        people.trigger("d", run_id=f"r{number}")
    over = threading.Event()
    dice = random.Random(11)

    def act() -> int:
        changed = 0
        until = time.monotonic() + DURATION_S
        while time.monotonic() < until:
            run_id = f"r{dice.randrange(RUNS)}"
            name = dice.choice(["first", "join", *(f"m{place}" for place in range(WIDTH))])
            around = Tasks(task_ids=(name,), downstream=dice.random() < 0.5, upstream=dice.random() < 0.5)
            hand = dice.randrange(5)
            if hand <= 1:
                changed += len(clear_(people, around, run_id=run_id))
            elif hand == 2:
                changed += len(mark_(people, dice.choice(mark.STATES), run_id=run_id, tasks=around, clear_downstream=True))
            elif hand == 3:
                changed += len(
                    transact(people.engine, mark.mark_run, "d", run_id, dice.choice([RunState.SUCCESS, RunState.FAILED]))
                )
            else:
                people.add(version(people.rows("select max(number) from dag_version")[0][0]))
        return changed

    with ThreadPoolExecutor(len(engines)) as pool:
        working = [pool.submit(schedule_and_work, scenario, over) for scenario in engines]
        try:
            assert act() > 20
        finally:
            over.set()
        assert sum(one.result(timeout=60) for one in working) > 20

    people.run_to_end(turns=60)
    clear_(people, run_id=None)
    people.run_to_end(turns=60)
    assert people.rows("select distinct state from dag_run") == [("success",)]
    assert {row[0] for row in people.rows("select distinct state from task_instance")} <= {"success", "removed"}
    assert people.rows("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]
