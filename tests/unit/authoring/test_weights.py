"""Effective priorities."""

import random
import time

from paceline import DAG, chain
from paceline.authoring import task_arguments
from paceline.operators import EmptyOperator


def test_a_task_counts_everything_behind_it_once() -> None:
    with DAG("d") as dag:
        a, b, c, d = (EmptyOperator(task_id=name, priority_weight=10**n) for n, name in enumerate("abcd"))
        a >> [b, c] >> d

    assert task_arguments.effective_priorities(dag) == {"a": 1111, "b": 1010, "c": 1100, "d": 1000}


def test_upstream_and_absolute_rules_apply_per_task() -> None:
    with DAG("d") as dag:
        chain(
            EmptyOperator(task_id="a"),
            EmptyOperator(task_id="b", weight_rule="absolute", priority_weight=7),
            EmptyOperator(task_id="c", weight_rule="upstream", priority_weight=-3),
        )

    assert task_arguments.effective_priorities(dag) == {"a": 5, "b": 7, "c": 5}


def test_random_graphs_agree_with_a_plain_walk() -> None:
    chosen = random.Random(1)
    names = [f"t{n}" for n in range(60)]
    own = {name: chosen.randint(-50, 1000) for name in names}
    down = {name: set(chosen.sample(names[n + 1 :], min(3, 59 - n))) for n, name in enumerate(names)}

    def reached(name: str) -> set[str]:
        return {name}.union(*(reached(child) for child in down[name])) if down[name] else {name}

    small = dict(list(down.items())[40:])
    found = task_arguments.effective_weights({n: own[n] for n in small}, rules=dict.fromkeys(small, "downstream"), downstream=small)
    assert found == {name: sum(own[n] for n in reached(name)) for name in small}


def test_huge_sums_stay_within_the_range_of_the_database() -> None:
    own = {"a": 2**31 - 1, "b": 2**31 - 1}

    found = task_arguments.effective_weights(own, rules=dict.fromkeys(own, "downstream"), downstream={"a": ["b"]})
    assert found["a"] == 2**31 - 1


def test_ten_thousand_tasks_are_weighed_in_a_moment() -> None:
    names = [f"t{n}" for n in range(10_000)]
    down = {name: names[n + 1 : n + 3] for n, name in enumerate(names)}
    own = {name: n for n, name in enumerate(names)}

    started = time.perf_counter()
    found = task_arguments.effective_weights(own, rules=dict.fromkeys(names, "downstream"), downstream=down)

    assert found["t0"] == sum(own.values())
    assert time.perf_counter() - started < 10
