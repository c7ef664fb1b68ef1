"""Limits that span pools hold although each scheduler locks only the pools it fills."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from support.scenario import Scenario, dag

from scheduler.services.promote import Promote
from scheduler.services.queue import Queue, Queued

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
