"""The queue service: pools, priorities, limits, windows and dispatch."""

from collections.abc import Callable

from support.scenario import Scenario, chain, wide

from scheduler.messaging.publisher import broker_lists


def queued(scenario: Scenario, dag_id: str) -> int:
    return scenario.rows(
        "select count(*) from task_instance t join dag_run r on r.id = t.dag_run_id where r.dag_id = %s and t.state = 'queued'",
        dag_id,
    )[0][0]


def test_a_nearly_full_pool_does_not_starve_another(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"max_tis_per_query": 32, "prefetch_window": 100})
    scenario.pool("a", 20)
    scenario.pool("b", 20)
    scenario.start(wide("blocker", 19, task={"pool": "a"}))
    scenario.add(wide("many", 1000, task={"pool": "a", "priority_weight": 2}))
    scenario.add(wide("few", 100, task={"pool": "b", "priority_weight": 1}))
    scenario.trigger("many")
    scenario.trigger("few")

    scenario.turn()

    assert (queued(scenario, "blocker"), queued(scenario, "many"), queued(scenario, "few")) == (19, 1, 20)


def test_a_run_at_its_limit_does_not_hide_another(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"max_tis_per_query": 64, "prefetch_window": 200})
    scenario.add(wide("narrow", 200, max_active_tasks=1, task={"priority_weight": 9}))
    scenario.add(wide("broad", 200))
    scenario.trigger("narrow")
    scenario.trigger("broad")

    scenario.turn()

    assert (queued(scenario, "narrow"), queued(scenario, "broad")) == (1, 63)


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


def test_parallelism_is_a_limit_over_all(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(core={"parallelism": 7})
    scenario.triggered(wide("w", 50))

    scenario.turn()

    assert queued(scenario, "w") == 7


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


def test_a_queue_holds_no_more_than_its_workers_can_take_soon(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"prefetch_window": 3})
    scenario.add(wide("w", 50, task={"queue": "nobody"}))
    scenario.add(wide("v", 100))
    scenario.trigger("w")
    scenario.trigger("v")

    scenario.turn()

    assert (queued(scenario, "w"), queued(scenario, "v")) == (3, 64 + 3)


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
