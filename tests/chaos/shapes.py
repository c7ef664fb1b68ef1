"""The DAGs of a chaos run, by its seed: chains, fans, joins, pools, mapped tasks and groups, sensors, deferrals, schedules."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from chaos.corners import DAG_IDS
from chaos.plan import Plan, PlannedDag, PlannedTask, Schedule

#: Pools made before anything runs; tasks that need 2 slots are among those of `narrow` and `odd`.
POOLS = {"narrow": 2, "odd": 3, "wide": 6, "probes": 100}
#: Fewer than the workers have places (chaos/cluster.py), so that an overrun can show.
PARALLELISM = 14
RULES = ("all_success", "all_success", "all_success", "all_done", "one_success", "none_failed", "none_failed_min_one_success",
         "one_failed", "all_done_min_one_success", "one_done", "none_skipped")  # fmt: skip
#: A queue of few places, so that messages wait in Redis: elsewhere the workers have more places than `parallelism` lets run.
FEW = "few"
#: The queue and the DAGs that only measure: one task that any scheduler should move at once, and a heap to wait in Redis.
PROBES = "probes"
MEASURES = (
    PlannedDag(
        dag_id="probe",
        tasks=(PlannedTask(task_id="probe", does="empty", pool="probes", queue=PROBES, weight=1000),),
        max_active_runs=1000,
    ),
    PlannedDag(
        dag_id="burst",
        tasks=tuple(PlannedTask(task_id=f"b{n:02}", seconds=0.05, weight=9, queue=FEW) for n in range(40)),
        max_active_runs=1000,
        max_active_tasks=1000,
    ),
)
INTERVAL, PAST_RUNS = timedelta(seconds=20), 8
Tasks = list[PlannedTask]


def plan(seed: int, *, start: datetime | None = None, seconds: float = 0.0) -> Plan:
    """The DAGs of a seed. The scheduled ones begin some intervals before `start` and end with the run's `seconds`."""
    makers: list[Callable[[random.Random], Tasks]] = [
        _chain, _chain, _fan, _fan, _join, _join, _diamonds, _retries, _retries, _narrow, _odd, _wide, _mapped, _mapped_output,
        _group, _sensor, _deferral, _random, _random, _random,
    ]  # fmt: skip
    found = []
    for number, make in enumerate(makers, start=1):
        rng = random.Random(f"{seed} {number}")
        dag_id = f"c{number:02}_{make.__name__.strip('_')}"
        runs, tasks = rng.choice((1, 2, 3, 16)), rng.choice((4, 8, 16, 64))
        found.append(PlannedDag(dag_id=dag_id, tasks=tuple(make(rng)), max_active_runs=runs, max_active_tasks=tasks))
    first = (start or datetime.now(UTC)).replace(microsecond=0) - PAST_RUNS * INTERVAL
    last = first + max(0, int((seconds + PAST_RUNS * INTERVAL.total_seconds()) / INTERVAL.total_seconds()) - 1) * INTERVAL
    schedule = Schedule(start=first, end=last, interval=INTERVAL)
    found += [
        PlannedDag(dag_id="c21_catchup", tasks=tuple(_past(1)), max_active_runs=3, schedule=schedule),
        PlannedDag(dag_id="c22_past", tasks=tuple(_past(3)), max_active_runs=2, schedule=schedule),
    ]
    return Plan.of([*found, *MEASURES], POOLS, PARALLELISM, others=DAG_IDS)


def _seconds(rng: random.Random) -> float:
    """From nothing to long enough to be killed in it; so that about half of all pool children are at work."""
    return round(rng.choice((0.0, 0.1, 0.3, 1.0, rng.uniform(0.5, 4.0))), 2)


def _node(task_id: str, rng: random.Random | None = None, share: float = 1.0, **options: object) -> PlannedTask:
    seconds = round(_seconds(rng) * share, 2) if rng is not None else 0.0
    return PlannedTask(**{"task_id": task_id, "seconds": seconds, **options})  # type: ignore[arg-type]


def _chain(rng: random.Random) -> Tasks:
    """Each task takes the result of the task before it."""
    length, seconds = rng.randint(12, 30), round(_seconds(rng) / 3, 2)
    names = [f"t{n:02}" for n in range(length)]
    return [
        _node(name, seconds=seconds, upstream=tuple(names[at - 1 : at] if at else ()), takes=names[at - 1] if at else None)
        for at, name in enumerate(names)
    ]


def _fan(rng: random.Random) -> Tasks:
    return [
        _node("first", rng),
        *(_node(f"f{n:02}", rng, upstream=("first",), takes="first") for n in range(rng.randint(15, 40))),
    ]


def _join(rng: random.Random) -> Tasks:
    fan = [_node(f"f{n:02}", rng) for n in range(rng.randint(10, 30))]
    middle = _node("middle", rule=rng.choice(("all_success", "all_done")), upstream=tuple(one.task_id for one in fan), takes="f00")
    return [*fan, middle, _node("last", upstream=("middle",), takes="middle")]


def _diamonds(rng: random.Random) -> Tasks:
    nodes = [_node("t0")]
    for level in range(1, rng.randint(4, 7)):
        sides = [_node(f"s{level}_{n}", rng, upstream=(f"t{level - 1}",), takes=f"t{level - 1}") for n in range(rng.randint(2, 5))]
        nodes += [*sides, _node(f"t{level}", upstream=tuple(side.task_id for side in sides), takes=sides[0].task_id)]
    return [replace(one, queue=FEW) for one in nodes]


def _retries(rng: random.Random) -> Tasks:
    seconds = _seconds(rng)
    made = [
        _node(f"r{n}", does="fails_first", seconds=seconds, failing_tries=n % 3, upstream=(f"r{n - 4}",) if n >= 4 else ())
        for n in range(12)
    ]
    fails = _node("fails", does="fails", retries=rng.randint(0, 2), retry_delay_s=0.2)
    after = _node("after", rule="all_done", upstream=(*(f"r{n}" for n in range(8, 12)), "fails"))
    return [*made, fails, after, _node("never", upstream=("fails",))]


def _narrow(rng: random.Random) -> Tasks:
    return _pool(rng, "narrow", 10)


def _odd(rng: random.Random) -> Tasks:
    return _pool(rng, "odd", 18)


def _wide(rng: random.Random) -> Tasks:
    return _pool(rng, "wide", 24)


def _pool(rng: random.Random, pool: str, count: int) -> Tasks:
    """Two layers, so that following has its part in filling the pool."""
    a = [_node(f"a{n:02}", rng, 0.5, pool=pool, pool_slots=1 + n % 2, weight=n % 4) for n in range(count // 2)]
    b = [
        _node(f"b{n:02}", rng, 0.5, pool=pool, pool_slots=1 + n % 2, weight=n % 5, upstream=(f"a{n:02}",), takes=f"a{n:02}")
        for n in range(count // 2)
    ]
    return [*a, *b]


def _mapped(rng: random.Random) -> Tasks:
    limit = rng.choice((None, ("max_active_tis_per_dagrun", 2), ("max_active_tis_per_dag", 3)))
    one = _node("one", rng, 0.5, does="item", count=rng.randint(8, 25), limit=limit, upstream=("first",), retry_delay_s=0.2)
    return [_node("first"), one, _node("last", upstream=("one",))]


def _mapped_output(rng: random.Random) -> Tasks:
    """Two tasks mapped over one list; now and then a second list is empty."""
    count = rng.randint(5, 20)
    each = {"does": "item", "count": count, "over": "make", "upstream": ("make",), "retry_delay_s": 0.2}
    return [
        _node("make", does="lists", count=count, retry_delay_s=0.2),
        _node("numbers", **each),
        _node("more", rng, 0.5, **each),
        _node("last", rule="none_failed", upstream=("numbers", "more")),
    ]


def _group(rng: random.Random) -> Tasks:
    count, seconds = rng.randint(4, 9), round(_seconds(rng) / 2, 2)
    each = {"does": "item", "count": count, "over": "made", "group": "each", "retry_delay_s": 0.2}
    return [
        _node("made", does="lists", count=count, retry_delay_s=0.2),
        _node("each.a", upstream=("made",), **each),
        _node("each.b", seconds=seconds, upstream=("each.a",), takes="each.a", **each),
        _node("each.c", upstream=("each.b",), takes="each.b", **each),
        _node("last", upstream=("each.c",)),
    ]


def _sensor(rng: random.Random) -> Tasks:
    dags = []
    for n in range(4):
        dags += [_node(f"wait{n}", does="pokes", seconds=0.5 + n)]
        dags += [_node(f"n{n}_{k}", rng, upstream=(f"wait{n}",)) for k in range(3)]
    return dags


def _deferral(rng: random.Random) -> Tasks:
    dags = []
    for n in range(5):
        dags += [
            _node(f"before{n}"),
            _node(f"wait{n}", does="waits", seconds=round(0.4 * n, 1), upstream=(f"before{n}",)),
            _node(f"after{n}", rng, upstream=(f"wait{n}",)),
        ]
    return dags


def _past(width: int) -> Tasks:
    """The middle waits for itself in the run before."""
    past = [_node(f"past{n}", seconds=0.2, depends_on_past=True, upstream=("first",), takes="first") for n in range(width)]
    return [_node("first"), *past, _node("last", upstream=tuple(one.task_id for one in past), takes="past0")]


def _random(rng: random.Random) -> Tasks:
    size = rng.randint(15, 30)
    calls = ("work", "work", "work", "work", "fails_first", "fails", "skips")
    made: Tasks = []
    for number in range(size):
        does = rng.choice(calls)
        retries = {"fails": rng.randint(0, 1), "work": rng.choice((3, 5, 5))}.get(does, 5)
        one = _node(
            f"t{number:02}", rng, does=does, retries=retries, failing_tries=1 if does == "fails_first" else 0,
            rule=rng.choice(RULES), pool=rng.choice(("default_pool", "default_pool", "wide")),
            pool_slots=rng.choice((1, 1, 1, 2)), weight=rng.randint(1, 5),
        )  # fmt: skip
        above = sorted(rng.sample(range(max(0, number - 8), number), rng.randint(0, min(3, number))))
        made.append(replace(one, upstream=tuple(made[at].task_id for at in above)))
    return made
