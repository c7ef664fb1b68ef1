"""The cost of a pass of the queue service: few statements, with any number of waiting tasks."""

from collections import Counter
from collections.abc import Callable
from math import inf

import pytest
from sqlalchemy import event
from support.scenario import Scenario, dag

from scheduler.deciding.limits import RUN
from scheduler.services.promote import Promote
from scheduler.services.queue import Queue
from scheduler.store.db.database import transact
from scheduler.store.queueing import capacity
from scheduler.store.queueing.capacity import UsedPlaces

#: Locks of pools, `parallelism` and runs, two counts, the line and the rest of it, the update, whether slots are passed on; then
#: the stamp with its setting.
MOST_STATEMENTS = 11


def statements_of_a_pass(scenario: Scenario) -> Counter[str]:
    queries: Counter[str] = Counter()
    with scenario.engine.connect():
        pass  # the settings of a new connection are not counted

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        queries[" ".join(statement.split())[:60]] += 1

    event.listen(scenario.engine, "before_cursor_execute", note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.services.queue.READ_PARKED_S", inf)  # one more statement a second
        scenario.schedulers[0].service(Queue).queue()
    event.remove(scenario.engine, "before_cursor_execute", note)
    return queries


def test_a_pass_that_fills_a_queue_sends_few_queries(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"prefetch_window": 8})
    scenario.triggered(dag("w", {f"t{number:03}": [] for number in range(300)}))
    scenario.schedulers[0].service(Promote).examiner.examine()

    queries = statements_of_a_pass(scenario)

    assert scenario.rows("select count(*) from task_instance where state = 'queued'") == [(72,)]
    assert queries.total() <= MOST_STATEMENTS, queries


def test_a_pass_with_nothing_to_do_sends_one_query(scenario: Scenario) -> None:
    assert statements_of_a_pass(scenario).total() == 1


def test_a_count_includes_only_the_requested_runs(scenario: Scenario) -> None:
    scenario.add(dag("d", {"a": [], "b": []}, max_active_tasks=7, max_active_runs=20))
    for number in range(20):
        scenario.trigger("d", run_id=f"r{number}")
    scenario.turn()
    (first, *_), one = scenario.rows("select id from dag_run order by id")[0], "default_pool"

    counts = transact(scenario.engine, capacity.count, [first, 2**40], alive_s=60)

    assert counts.used == [UsedPlaces(one, "default", 40, 40)]
    assert (counts.active, counts.most) == ({(RUN, first): 2}, {(RUN, first): 7})


def test_a_pass_excludes_runs_that_were_full_before_its_limit(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"max_tis_per_query": 4, "prefetch_window": 4})
    scenario.pool("p", 8)
    scenario.add(
        dag("full", {f"t{number}": [] for number in range(9)}, max_active_tasks=1, task={"pool": "p", "priority_weight": 2})
    )
    scenario.add(dag("other", {f"t{number}": [] for number in range(2)}, task={"pool": "p"}))
    run = scenario.trigger("full")
    scenario.turn()
    scenario.trigger("other")
    scenario.schedulers[0].service(Promote).examiner.examine()

    queries = statements_of_a_pass(scenario)

    queued = "select dag_run_id = %s, count(*) from task_instance where state = 'queued' group by 1 order by 1"
    assert scenario.rows(queued, run) == [(False, 2), (True, 1)]
    (lines,) = (times for statement, times in queries.items() if statement.startswith("select w.* from unnest"))
    assert lines == 1
