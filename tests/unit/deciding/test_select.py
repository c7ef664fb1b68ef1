"""Selection: rank order, and no limit exceeded by any set of waiting tasks."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from paceline.states import Waiting
from scheduler.deciding.limits import RUN
from scheduler.deciding.select import FreeCapacity, select

POOLS = ("a", "b", "missing")
waiting_lists = st.lists(
    st.builds(
        Waiting,
        id=st.integers(1, 10_000),
        rank=st.integers(-3, 3),
        dag_id=st.just("d"),
        task_id=st.sampled_from(("x", "y")),
        task_limit=st.none() | st.integers(1, 3),
        task_in_run_limit=st.none() | st.integers(1, 3),
        dag_run_id=st.integers(1, 3),
        pool=st.sampled_from(POOLS),
        pool_slots=st.integers(1, 4),
        queue=st.sampled_from(("default", "spark")),
        run_limit=st.integers(1, 6),
    ),
    max_size=60,
    unique_by=lambda one: one.id,
)
rooms = st.builds(
    lambda a, b, default, spark, parallelism: FreeCapacity(
        pools={"a": a, "b": b},
        queues=defaultdict(int, default=default, spark=spark),
        active=Counter({(RUN, 1): 1}),
        parallelism=parallelism,
    ),
    *[st.integers(-1, 12)] * 5,
)


@given(waiting_lists, rooms, st.integers(1, 50))
def test_no_limit_is_exceeded_and_nothing_that_fits_is_left(waiting: list[Waiting], room: FreeCapacity, limit: int) -> None:
    chosen = select(waiting, room, limit=limit, reserve=False)

    taken = Taken(room)
    for one in chosen:
        assert taken.allows(one)
        taken.add(one)
    assert len(chosen) <= max(0, min(limit, room.parallelism))
    if len(chosen) < min(limit, room.parallelism):
        assert not any(taken.allows(one) for one in set(waiting) - set(chosen))


@given(waiting_lists, rooms)
def test_with_reservation_no_task_takes_slots_that_a_higher_ranked_task_waits_for(
    waiting: list[Waiting], room: FreeCapacity
) -> None:
    chosen = select(waiting, room, limit=50)

    taken = Taken(room)
    holding: set[str] = set()
    for one in sorted(waiting, key=lambda one: (-one.rank, one.id)):
        if one in chosen:
            assert one.pool not in holding
            taken.add(one)
        elif taken.allows(one, slots=False) and len(chosen) < room.parallelism:
            assert one.pool in holding or not taken.allows(one)
            holding.add(one.pool)


@given(waiting_lists)
def test_among_equals_the_higher_weight_and_then_the_older_comes_first(waiting: list[Waiting]) -> None:
    room = FreeCapacity(pools={"a": 10_000}, queues=defaultdict(lambda: 10_000), parallelism=5)
    unlimited = {"run_limit": 999, "task_limit": None, "task_in_run_limit": None}
    wide = [Waiting(**{name: getattr(one, name) for name in Waiting.__slots__} | unlimited) for one in waiting]

    chosen = select(wide, room, limit=5, reserve=False)

    assert chosen == sorted((one for one in wide if one.pool == "a"), key=lambda one: (-one.rank, one.id))[:5]


class Taken:
    """The tasks chosen so far, counted again."""

    def __init__(self, room: FreeCapacity) -> None:
        self.room = room
        self.slots, self.queues, self.tasks = Counter[str](), Counter[str](), Counter[str]()
        self.runs = Counter({key: count for (limit, key), count in room.active.items() if limit == RUN})
        self.in_run = Counter[tuple[int, str]]()

    def add(self, one: Waiting) -> None:
        self.slots[one.pool] += one.pool_slots
        self.queues[one.queue] += 1
        self.tasks[one.task_id] += 1
        self.runs[one.dag_run_id] += 1
        self.in_run[one.dag_run_id, one.task_id] += 1

    def allows(self, one: Waiting, *, slots: bool = True) -> bool:
        return (
            (not slots or self.room.pools.get(one.pool, 0) - self.slots[one.pool] >= one.pool_slots)
            and self.queues[one.queue] < self.room.queues[one.queue]
            and self.runs[one.dag_run_id] < one.run_limit
            and (one.task_limit is None or self.tasks[one.task_id] < one.task_limit)
            and (one.task_in_run_limit is None or self.in_run[one.dag_run_id, one.task_id] < one.task_in_run_limit)
        )
