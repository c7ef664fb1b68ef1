"""The queue service: pools, priorities, limits, windows, dispatch, its cost, and its report for Flower."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
from sqlalchemy import event
from support.scenario import Scenario, chain, dag, wide

from scheduler.deciding.limits import RUN
from scheduler.messaging import publisher
from scheduler.messaging.publisher import broker_lists
from scheduler.serialized.dag import SerializedDag
from scheduler.services import queue_report
from scheduler.services.promote import Promote
from scheduler.services.queue import Queue
from scheduler.store.db.database import transact
from scheduler.store.db.prepared import PLAN_ONCE
from scheduler.store.queueing import capacity
from scheduler.store.queueing.capacity import UsedPlaces
from workers.flower.queues import read_report


def queued(scenario: Scenario, dag_id: str) -> int:
    return scenario.rows(
        "select count(*) from task_instance t join dag_run r on r.id = t.dag_run_id where r.dag_id = %s and t.state = 'queued'",
        dag_id,
    )[0][0]


P = {"pool": "p"}
LIMITED = {"expand": {"kind": "product", "inputs": [{"literal": 500}]}, "max_active_tis_per_dag": 1, "priority_weight": 9}
#: The settings; the pools with their slots; the DAGs of tasks without edges, those before None when others have their slots
#: already; and how many task instances of each one pass queues.
PASSES: dict[str, tuple[dict[str, Any], dict[str, int], list[SerializedDag | None], dict[str, int]]] = {
    "a nearly full pool does not starve another": (
        {"scheduler": {"max_tis_per_query": 32, "prefetch_window": 100}}, {"p": 20, "q": 20},
        [wide("blocker", 19, task=P), None, wide("many", 1000, task=P | {"priority_weight": 2}),
         wide("few", 100, task={"pool": "q", "priority_weight": 1})], {"blocker": 19, "many": 1, "few": 20}),
    "a run at its limit does not hide another": (
        {"scheduler": {"max_tis_per_query": 64, "prefetch_window": 200}}, {},
        [wide("narrow", 200, max_active_tasks=1, task={"priority_weight": 9}), wide("broad", 200)], {"narrow": 1, "broad": 63}),
    "a task at its own limit does not hide another": (
        {"scheduler": {"max_tis_per_query": 32, "prefetch_window": 100}}, {},
        [dag("limited", {"a": []}, options={"a": LIMITED}), wide("free", 40)], {"limited": 1, "free": 31}),
    "parallelism is a limit over all": ({"core": {"parallelism": 7}}, {}, [wide("w", 50)], {"w": 7}),
    "a queue holds no more than its workers can take soon": (
        {"scheduler": {"prefetch_window": 3}}, {}, [wide("w", 50, task={"queue": "nobody"}), wide("v", 100)],
        {"w": 3, "v": 64 + 3}),
    "without reservation small tasks pass": (
        {"scheduler": {"pool_reservation": False}}, {"p": 4},
        [wide("small", 3, task=P), None, wide("big", 1, task=P | {"pool_slots": 4}), wide("many", 50, task=P)],
        {"small": 3, "big": 0, "many": 1}),
    "a task larger than its pool holds no place": (
        {}, {"p": 4}, [wide("huge", 1, task=P | {"pool_slots": 5}), wide("many", 10, task=P)], {"huge": 0, "many": 4}),
}  # fmt: skip


@pytest.mark.parametrize("case", PASSES)
def test_a_pass_queues(make_scenario: Callable[..., Scenario], case: str) -> None:
    settings, pools, new, expected = PASSES[case]
    scenario = make_scenario(**settings)
    for name, slots in pools.items():
        scenario.pool(name, slots)
    for one in new:
        if one is None:
            scenario.turn()
        else:
            scenario.triggered(one)

    scenario.turn()

    assert {dag_id: queued(scenario, dag_id) for dag_id in expected} == expected


def test_higher_weight_goes_first_then_the_older(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario()
    scenario.pool("one", 1)
    for name, weight in (("old", 1), ("new", 1), ("heavy", 5)):
        scenario.add(chain(name, 1, task={"pool": "one", "priority_weight": weight}))
        scenario.trigger(name)
    order = []
    for _ in range(3):
        scenario.turn()
        order += [
            row[0]
            for row in scenario.rows(
                "select r.dag_id from task_instance t join dag_run r on r.id = t.dag_run_id where t.state = 'queued'"
            )
        ]
        scenario.work()

    assert order == ["heavy", "old", "new"]


def test_pool_slots_are_counted_and_never_overrun(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2)
    scenario.pool("p", 5)
    scenario.triggered(wide("two", 20, task={"pool": "p", "pool_slots": 2}))
    for _ in range(40):
        scenario.turn()
        used = scenario.rows("select coalesce(sum(pool_slots), 0) from task_instance where state in ('queued', 'running')")[0][0]
        assert used <= 5
        if not scenario.work():
            break

    assert set(scenario.states().values()) == {"success"}


def test_a_missing_pool_leaves_its_tasks_waiting_and_delays_no_others(scenario: Scenario) -> None:
    scenario.add(chain("lost", 1, task={"pool": "nowhere"}))
    scenario.add(chain("fine", 1))
    scenario.trigger("lost")
    fine = scenario.trigger("fine")

    for _ in range(3):
        scenario.turn()
        scenario.work()

    assert scenario.run_state(fine) == "success"
    assert scenario.rows("select state from task_instance where pool = 'nowhere'") == [("scheduled",)]


def test_a_task_goes_to_its_own_queue_else_its_pools_else_the_default(scenario: Scenario) -> None:
    scenario.pool("gpu", 4, queue="gpu-queue")
    scenario.add(chain("own", 1, task={"queue": "mine", "pool": "gpu"}))
    scenario.add(chain("pools", 1, task={"pool": "gpu"}))
    scenario.add(chain("plain", 1))
    for name in ("own", "pools", "plain"):
        scenario.trigger(name)

    scenario.turn()

    assert scenario.rows("select queue, state from task_instance order by id") == [
        ("mine", "queued"),
        ("gpu-queue", "queued"),
        ("default", "queued"),
    ]
    assert all(sum(scenario.broker.llen(key) for key in broker_lists(name)) == 1 for name in ("mine", "gpu-queue", "default"))


def test_dispatched_at_is_stamped_once_the_broker_has_the_message(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 1))

    scenario.turn()

    assert scenario.rows("select dispatched_at >= queued_at from task_instance") == [(True,)]


def test_a_message_has_a_readable_name_in_flower(scenario: Scenario) -> None:
    import base64
    import json

    scenario.start(chain("dag_a", 1), run_id="run-1")

    body = next(body for key in broker_lists("default") for body in scenario.broker.lrange(key, 0, -1))
    message = json.loads(body)
    row = scenario.rows("select id, dispatch_id::text from task_instance")[0]
    assert (message["headers"]["shadow"], message["headers"]["argsrepr"]) == ("dag_a.t000", "run-1")
    assert message["headers"]["id"] == row[1]
    assert json.loads(base64.b64decode(message["body"]))[0] == list(row)


#: Locks of pools, `parallelism` and runs, two counts, the line and the rest of it, the update, whether slots are passed on; then
#: the stamp with its setting.
MOST_STATEMENTS = 11


def statements_of_a_pass(scenario: Scenario) -> Counter[str]:
    queries: Counter[str] = Counter()
    with scenario.engine.connect():
        pass  # the settings of a new connection are not counted

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("prepare "):  # once for each connection
            queries[" ".join(statement.removeprefix(PLAN_ONCE).split())[:60]] += 1

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


NOW = datetime(2026, 3, 1, tzinfo=UTC)


def reporter(scenario: Scenario) -> queue_report.QueueReport:
    return queue_report.QueueReport(scenario.engine, scenario.settings, scenario.brokers)


def test_one_scheduler_writes_for_all(scenario: Scenario) -> None:
    scenario.start(chain("d", 1, task={"queue": "q"}))
    scenario.broker.delete(queue_report.KEY, queue_report.LOCK_KEY)

    assert [reporter(scenario).write(NOW), reporter(scenario).write(NOW)] == [True, False]

    found = read_report(scenario.broker)
    assert found is not None and found["at"] == NOW.isoformat()
    rows = {row["queue"]: row for row in found["queues"]}
    assert (rows["q"]["queued"], rows["q"]["workers"], rows["default"]["worker_names"]) == (1, 0, ["w"])
    assert publisher.lengths(scenario.brokers, ["q", "none"]) == {"q": 1, "none": 0}
