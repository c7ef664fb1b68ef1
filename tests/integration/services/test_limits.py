"""What one pass of the queue service may choose: limits of tasks, also across pools, reserved places, age, and deferred slots."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from support.scenario import Scenario, chain, dag, wide

from paceline.states import TaskState
from scheduler.services.promote import Promote
from scheduler.services.queue import Queue, Queued
from scheduler.store.worker.claims import Claim, Deferral, Ending

S = TaskState
ACTIVE = "('queued', 'running', 'shutdown', 'deferred')"


def active(scenario: Scenario, where: str) -> int:
    return scenario.rows(
        f"select count(*) from task_instance t join dag_run r on r.id = t.dag_run_id where t.state in {ACTIVE} and {where}"
    )[0][0]


def test_a_big_task_holds_its_place_until_there_is_room(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario()
    scenario.pool("p", 4)
    scenario.add(wide("small", 3, task={"pool": "p"}))
    scenario.add(chain("big", 1, task={"pool": "p", "pool_slots": 4}))
    scenario.add(wide("many", 50, task={"pool": "p"}))
    scenario.trigger("small")
    scenario.turn()
    scenario.trigger("big")
    scenario.trigger("many")

    scenario.turn()
    # One slot is free and 50 small tasks would take it, but the big task came first.
    assert (active(scenario, "r.dag_id = 'big'"), active(scenario, "r.dag_id = 'many'")) == (0, 0)
    scenario.work()
    scenario.turn()

    assert (active(scenario, "r.dag_id = 'big'"), active(scenario, "r.dag_id = 'many'")) == (1, 0)


def test_rank_rises_with_age_if_configured(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"priority_aging": 60})
    scenario.pool("p", 1)
    scenario.start(chain("holder", 2, task={"pool": "p", "priority_weight": 100}))
    for name, weight in (("old", 1), ("new", 5)):
        scenario.add(chain(name, 1, task={"pool": "p", "priority_weight": weight}))
        scenario.trigger(name)
    scenario.turn()
    scenario.sql("update task_instance set scheduled_at = scheduled_at - interval '5 minutes' where queue = 'default'"
                 " and dag_run_id = (select id from dag_run where dag_id = 'old')")  # fmt: skip
    follower = scenario.follower
    follower._aging = True

    scenario.work()  # a worker does not pass waiting tasks, since it does not have their age
    assert active(scenario, "true") == 0
    scenario.turn()
    scenario.work()
    scenario.turn()

    assert active(scenario, "r.dag_id = 'old'") == 1


@pytest.mark.parametrize("follow", [True, False])
def test_max_active_tis_per_dag_counts_over_all_runs(make_scenario: Callable[..., Scenario], follow: bool) -> None:
    scenario = make_scenario(schedulers=3, follow=follow)
    for pool in ("p", "q"):
        scenario.pool(pool, 50)
    edges: dict[str, list[str]] = {"a": [], "b": ["a"]}
    scenario.add(dag("d", edges, options={"b": {"max_active_tis_per_dag": 2, "pool": "p"}, "a": {"pool": "p"}}, max_active_runs=20))
    for number in range(12):
        scenario.trigger("d", run_id=f"r{number}")
    most = 0
    for _ in range(200):
        _at_once(scenario)  # of three at once, each may find its rows locked by another
        most = max(most, active(scenario, "t.task_id = 'b'"))
        scenario.work()
        if scenario.rows("select distinct state from dag_run") == [("success",)]:
            break

    assert most == 2
    assert scenario.rows("select distinct state from dag_run") == [("success",)]


def test_max_active_tis_per_dagrun_counts_within_each_run(scenario: Scenario) -> None:
    spec = {"expand": {"kind": "product", "inputs": [{"literal": 9}]}, "max_active_tis_per_dagrun": 2}
    scenario.add(dag("d", {"a": []}, options={"a": spec}))
    runs = [scenario.trigger("d", run_id=name) for name in ("x", "y")]

    scenario.turn()

    assert [active(scenario, f"t.dag_run_id = {run}") for run in runs] == [2, 2]
    scenario.run_to_end()
    assert scenario.run_state(runs[0]) == "success"


def test_a_pool_called_as_the_connection_of_a_cluster_holds_the_tasks_that_go_there(scenario: Scenario) -> None:
    scenario.pool("prod", 2, queue="theirs")
    scenario.add(wide("d", 4, task={"cluster": "prod"}))
    scenario.add(wide("other", 1, task={"cluster": "gone", "queue": "mine"}))
    scenario.trigger("d")
    scenario.trigger("other")
    scenario.queues |= {"theirs"}

    scenario.turn()

    assert active(scenario, "t.pool = 'prod' and t.queue = 'theirs'") == 2
    assert active(scenario, "t.pool = 'default_pool' and t.queue = 'mine'") == 1
    scenario.run_to_end()


@pytest.mark.parametrize(("counted", "queued"), [(True, 0), (False, 2)])
def test_deferred_tasks_hold_slots_only_of_pools_that_count_them(scenario: Scenario, counted: bool, queued: int) -> None:
    scenario.pool("p", 2)
    scenario.sql("update pool set include_deferred = %s where name = 'p'", counted)
    scenario.start(wide("d", 4, task={"pool": "p"}))
    scenario.work(outcome=lambda claim: Ending(S.DEFERRED, resume={"method": "go"}, deferral=Deferral(classpath="x.Y", kwargs={})))

    scenario.turn()

    assert active(scenario, "t.state = 'queued'") == queued
    scenario.sql("update task_instance set due_at = clock_timestamp() where state = 'deferred'")
    scenario.run_to_end()


def test_a_task_instance_that_waits_without_a_worker_continues_with_the_same_try(scenario: Scenario) -> None:
    run = scenario.triggered(chain("d", 1))
    seen: list[tuple[int, object, str]] = []

    def outcome(claim: Claim) -> Ending:
        seen.append((claim.try_number, claim.resume, claim.dispatch_id))
        if len(seen) == 1:
            return Ending(S.UP_FOR_RESCHEDULE, delay_s=0.0, resume={"pokes": 1})
        if len(seen) == 2:
            deferral = Deferral(classpath="x.Y", kwargs={"a": 1}, file="d.py")
            return Ending(S.DEFERRED, delay_s=0.0, resume={"method": "go"}, deferral=deferral)
        return Ending(S.SUCCESS)

    scenario.run_to_end(outcome=outcome)

    assert [(number, resume) for number, resume, _ in seen] == [
        (1, None), (1, {"pokes": 1}), (1, {"method": "go", "timed_out": True}),
    ]  # fmt: skip
    assert len({dispatch_id for _, _, dispatch_id in seen}) == 3
    assert scenario.rows("select count(*) from deferral") == [(0,)]
    assert scenario.rows("select state, try_number, resume from task_instance where dag_run_id = %s", run) == [("success", 1, None)]


def _at_once(scenario: Scenario) -> None:
    """A turn of every scheduler at the same time."""

    def turn(number: int) -> None:
        for timer in scenario.schedulers[number].timers.values():
            timer.due_at = 0.0
        scenario.schedulers[number].run_once()

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(len(scenario.schedulers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WIDTH = 40
MOST = 8


def two_pools(scenario: Scenario, queues: tuple[str, str]) -> None:
    """Tasks are ready in pool p and, once `make_ready` was called, in pool q."""
    for pool, queue in zip("pq", queues, strict=True):
        scenario.pool(pool, 1000)
        scenario.add(dag(f"in_{pool}", {f"t{no:02}": [] for no in range(WIDTH)}, task={"pool": pool, "queue": queue}))
        scenario.trigger(f"in_{pool}")
    scenario.schedulers[0].service(Promote).examiner.examine()
    scenario.sql("update task_instance set state = null where pool = 'q'")


def make_ready(scenario: Scenario) -> None:
    scenario.sql("update task_instance set state = 'scheduled', scheduled_at = clock_timestamp() where pool = 'q'")


def after_each_choice(scenario: Scenario, call: Callable[[int], None]) -> None:
    """Call with the number of task instances that a scheduler has queued, before it commits."""

    def executed(_: object, cursor: Any, statement: str, *more: object) -> None:
        if "set state = 'queued', dispatch_id" in statement:
            call(cursor.rowcount)

    event.listen(scenario.engine, "after_cursor_execute", executed)


def queue_in_the_middle_of(scenario: Scenario) -> list[Queued]:
    """Let the second scheduler take a pass while the first has chosen and not committed; the choices of that pass."""
    meanwhile: list[Queued] = []

    def chosen(_: int) -> None:
        if not meanwhile:
            meanwhile.append(Queued([], sent=True, more=False))
            make_ready(scenario)
            meanwhile[0] = scenario.schedulers[1].service(Queue).queue()

    after_each_choice(scenario, chosen)
    return meanwhile


def queue_within_each_other(scenario: Scenario, *, ready: int) -> list[int]:
    """The first scheduler takes a pass; before it commits, `ready` more are ready in the second's pool and that one takes a
    pass, and so on. How many each took, the first one first.
    """
    took = [0] * len(scenario.schedulers)

    def pass_of(number: int) -> None:
        scenario.sql(
            "update task_instance set state = 'scheduled', scheduled_at = clock_timestamp() where id in"
            " (select id from task_instance where pool = %s and state is null order by id limit %s)",
            f"p{number}",
            ready,
        )
        took[number] = len(scenario.schedulers[number].service(Queue).queue().messages)

    def chosen(queued: int) -> None:
        under_way.append(queued)
        if len(under_way) < len(scenario.schedulers):
            pass_of(len(under_way))

    under_way: list[int] = []
    after_each_choice(scenario, chosen)
    pass_of(0)
    return took


def queued(scenario: Scenario, where: str = "true") -> int:
    return scenario.rows(f"select count(*) from task_instance where state = 'queued' and {where}")[0][0]


def passes(scenario: Scenario, count: int) -> None:
    for number in range(count):
        scenario.schedulers[number % 2].service(Queue).queue()


@pytest.mark.parametrize("free", [MOST, 2 * MOST - 1])
def test_two_schedulers_with_different_pools_stay_within_parallelism(make_scenario: Callable[..., Scenario], free: int) -> None:
    """No pass can use it up alone, but two at once could."""
    scenario = make_scenario(schedulers=2, core={"parallelism": free}, scheduler={"max_tis_per_query": MOST})
    two_pools(scenario, ("default", "other"))
    meanwhile = queue_in_the_middle_of(scenario)

    scenario.schedulers[0].service(Queue).queue()

    assert queued(scenario, "pool = 'p'") == MOST
    assert meanwhile[0].held_elsewhere, "it looks again soon"
    passes(scenario, 4)
    assert queued(scenario) == free, "nothing of it is left unused"


@pytest.mark.parametrize(("parallelism", "took"), [(24, [8, 8, 8]), (20, [8, 8, 4]), (8, [8, 0, 0])])
def test_a_pass_leaves_other_passes_their_share_and_no_more(
    make_scenario: Callable[..., Scenario], parallelism: int, took: list[int]
) -> None:
    """Pools that nothing waits for, and how much a pass might have found, do not matter."""
    scenario = make_scenario(schedulers=3, core={"parallelism": parallelism}, scheduler={"prefetch_window": 1000})
    for number in range(30):
        scenario.pool(f"p{number}", 1000)
    for number in range(3):
        scenario.add(dag(f"d{number}", {f"t{no}": [] for no in range(MOST)}, task={"pool": f"p{number}", "queue": f"q{number}"}))
        scenario.trigger(f"d{number}")
    scenario.schedulers[0].service(Promote).examiner.examine()
    scenario.sql("update task_instance set state = null")

    assert queue_within_each_other(scenario, ready=MOST) == took


def test_two_schedulers_with_different_pools_stay_within_the_places_of_a_queue(
    make_scenario: Callable[..., Scenario],
) -> None:
    scenario = make_scenario(schedulers=2, scheduler={"max_tis_per_query": MOST, "prefetch_window": MOST})
    two_pools(scenario, ("same", "same"))
    meanwhile = queue_in_the_middle_of(scenario)

    scenario.schedulers[0].service(Queue).queue()

    assert meanwhile[0].held_elsewhere
    passes(scenario, 4)
    assert queued(scenario) == MOST


def test_schedulers_with_different_pools_do_not_wait_for_each_other_while_much_is_free(
    make_scenario: Callable[..., Scenario],
) -> None:
    scenario = make_scenario(
        schedulers=2, core={"parallelism": 1000}, scheduler={"max_tis_per_query": MOST, "prefetch_window": 1000}
    )
    two_pools(scenario, ("same", "same"))
    meanwhile = queue_in_the_middle_of(scenario)

    scenario.schedulers[0].service(Queue).queue()

    assert (queued(scenario, "pool = 'p'"), queued(scenario, "pool = 'q'")) == (MOST, MOST)
    assert len(meanwhile[0].messages) == MOST
