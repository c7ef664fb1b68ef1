"""Selection: rank order, and no limit exceeded whatever waits."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from scheduler.deciding.select import Room, select
from scheduler.states import Waiting

POOLS = ("a", "b", "missing")
waiting_lists = st.lists(
    st.builds(
        Waiting,
        id=st.integers(1, 10_000),
        dag_run_id=st.integers(1, 3),
        pool=st.sampled_from(POOLS),
        pool_slots=st.integers(1, 4),
        queue=st.sampled_from(("default", "spark")),
        priority_weight=st.integers(-3, 3),
        run_limit=st.integers(1, 6),
    ),
    max_size=60,
    unique_by=lambda one: one.id,
)
rooms = st.builds(
    lambda a, b, default, spark, parallelism: Room(
        pools={"a": a, "b": b},
        queues=defaultdict(int, default=default, spark=spark),
        active_in_run=Counter({1: 1}),
        parallelism=parallelism,
    ),
    *[st.integers(-1, 12)] * 5,
)


@given(waiting_lists, rooms, st.integers(1, 50))
def test_no_limit_is_exceeded_and_nothing_that_fits_is_left(waiting: list[Waiting], room: Room, limit: int) -> None:
    chosen = select(waiting, room, limit=limit)

    slots, queues = Counter[str](), Counter[str]()
    active = room.active_in_run.copy()
    for one in chosen:
        slots[one.pool] += one.pool_slots
        queues[one.queue] += 1
        active[one.dag_run_id] += 1
        assert active[one.dag_run_id] <= one.run_limit
    assert all(slots[name] <= room.pools[name] for name in slots)
    assert all(queues[name] <= room.queues[name] for name in queues)
    assert len(chosen) <= max(0, min(limit, room.parallelism))
    if len(chosen) < min(limit, room.parallelism):
        for one in set(waiting) - set(chosen):
            fits = (
                room.pools.get(one.pool, 0) - slots[one.pool] >= one.pool_slots
                and queues[one.queue] < room.queues[one.queue]
                and active[one.dag_run_id] < one.run_limit
            )
            assert not fits


@given(waiting_lists)
def test_among_equals_the_higher_weight_and_then_the_older_comes_first(waiting: list[Waiting]) -> None:
    room = Room(pools={"a": 10_000}, queues=defaultdict(lambda: 10_000), active_in_run=Counter(), parallelism=5)
    wide = [Waiting(**{name: getattr(one, name) for name in Waiting.__slots__} | {"run_limit": 999}) for one in waiting]

    chosen = select(wide, room, limit=5)

    assert chosen == sorted((one for one in wide if one.pool == "a"), key=lambda one: (-one.priority_weight, one.id))[:5]
