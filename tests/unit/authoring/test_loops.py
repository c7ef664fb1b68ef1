"""Loops: `.loop()` of a task group, in runs in memory."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline import LoopDecision, task, task_group
from paceline.exceptions import DagError
from paceline.operators import EmptyOperator
from paceline.testing.results import RunResult
from scheduler.testing.plugin import DagMaker

Run = Callable[..., RunResult]


def halve(dag_maker: DagMaker, until: Any = None, *, most: int = 5, start: int = 8) -> RunResult:
    with dag_maker("d"):

        @task_group
        def body(first: int) -> None:
            @task
            def half(first: int, *, loop: Any) -> int:
                return int((first if loop.previous is None else loop.previous) // 2)

            @task
            def known(number: int) -> int:
                return number

            known(half(first))

        body.partial(first=start).loop(max_iterations=most, until=until) >> EmptyOperator(task_id="after")
    return dag_maker.run()


def test_it_ends_when_its_condition_holds_and_downstream_tasks_run_once(dag_maker: DagMaker) -> None:
    def small(*, loop: Any) -> LoopDecision:
        return LoopDecision(stop=loop.result <= 2, reason=f"{loop.result} in iteration {loop.index} of {loop.max_iterations}")

    result = halve(dag_maker, small)

    assert result.success
    assert [result.xcoms[f"body.known[{at}]"] for at in range(2)] == [4, 2]
    assert result.order == [
        "body.half[0]", "body.known[0]", "body.small[0]", "body.half[1]", "body.known[1]", "body.small[1]", "after",
    ]  # fmt: skip


def test_without_a_condition_it_runs_so_many_times(dag_maker: DagMaker) -> None:
    result = halve(dag_maker, most=3)

    assert result.success and result.xcoms["body.known[2]"] == 1 and "body.loop_gate[2]" in result.order


@pytest.mark.parametrize(
    ("until", "words"),
    [
        (lambda loop: False, "still false after max_iterations=2"),
        (lambda loop: LoopDecision(stop=False, reason="too big"), "max_iterations=2: too big"),
        (lambda loop: 1, "until must return True, False or a LoopDecision, not 1"),
        (lambda loop: LoopDecision(stop=True, reason="x" * 513), "at most 512 bytes"),
    ],
)
def test_it_fails_if_its_condition_never_holds_or_is_no_decision(dag_maker: DagMaker, until: Any, words: str) -> None:
    result = halve(dag_maker, until, most=2)

    assert result.failed and result.states["after"] == "upstream_failed"
    assert words in str(result.error)


def test_a_failed_iteration_is_the_last_one(dag_maker: DagMaker) -> None:
    with dag_maker("d"):

        @task_group
        def body() -> None:
            @task
            def work(*, loop: Any) -> None:
                if loop.index == 2:
                    raise ValueError("broken")

            work()

        body.loop(max_iterations=4)

    result = dag_maker.run()

    assert result.failed and [state for state in result.states.values() if state == "success"] == ["success", "success"]
    assert result.states["body.work[1]"] == "failed" and result.states["body.work[2]"] == "upstream_failed"


def nested(inner: Callable[[], Any]) -> Callable[[], Any]:
    @task_group
    def body() -> None:
        inner()

    return lambda: body.loop(max_iterations=2)


@task
def one(value: int = 1) -> int:
    return value


@task_group
def group(value: int = 1) -> None:
    one(value)


def two_ends() -> None:
    one()
    one()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (nested(lambda: one.expand(value=[1])), "is in the loop 'body', where nothing can be mapped"),
        (nested(lambda: group.expand(value=[1])), "is in the loop 'body', where nothing can be mapped"),
        (nested(lambda: group.loop(max_iterations=2)), "is in the loop 'body', where nothing can be mapped and no other loop"),
        (nested(two_ends), "must end with one task, .* not with body.one, body.one__1"),
        (nested(lambda: None), "not with no task"),
        (lambda: group.loop(max_iterations=0), "max_iterations must be a whole number from 1 to 1,000, not 0"),
        (lambda: group.loop(max_iterations=True), "not True"),
        (lambda: group.loop(max_iterations=2, until="done"), "until must be a function"),
    ],
)
def test_a_mistake_is_one_sentence(dag_maker: DagMaker, make: Callable[[], Any], words: str) -> None:
    with pytest.raises(DagError, match=words), dag_maker("d"):
        make()


def test_outside_a_loop_there_is_no_loop(dag_maker: DagMaker) -> None:
    with dag_maker("d"):

        @task
        def none(loop: Any = 1) -> bool:
            return loop is None

        none()

    assert dag_maker.run().xcoms == {"none": True}
