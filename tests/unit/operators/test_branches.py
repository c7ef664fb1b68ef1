"""The tasks that a branch skips."""

from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any

import pytest
from support.tries import NOON, Ti, run

from paceline import DAG, TaskGroup, task
from paceline.exceptions import DagError, FailTask, SkipTask
from paceline.operators import (
    BranchDateTimeOperator,
    BranchDayOfWeekOperator,
    BranchPythonOperator,
    EmptyOperator,
    LatestOnlyOperator,
    ShortCircuitOperator,
)

OFFSET = timezone(timedelta(hours=5, minutes=30))


def branching(choice: Any) -> BranchPythonOperator:
    """before >> choose >> [a, b, join], [a, b] >> join, a >> far; and b >> group.first >> [group.second, group.inner.third]."""
    with DAG("d"):
        choose = BranchPythonOperator(task_id="choose", python_callable=lambda: choice)
        a, b, join, far, before = (EmptyOperator(task_id=name) for name in ("a", "b", "join", "far", "before"))
        before >> choose >> [a, b, join]
        [a, b] >> join
        a >> far
        with TaskGroup("group"):
            first = EmptyOperator(task_id="first")
            with TaskGroup("inner"):
                first >> EmptyOperator(task_id="third")
            first >> EmptyOperator(task_id="second")
        b >> first
    return choose


@pytest.mark.parametrize(
    ("choice", "skipped"),
    [
        ("a", ["b"]),
        (["a", "b"], []),
        (None, ["a", "b", "join"]),
        ([], ["a", "b", "join"]),
        (("join",), ["a", "b"]),
        ({"a": 1}, ["b"]),
        ((name for name in "a"), ["b"]),
        # Not directly below it: Airflow 3.3.2 skips all that is, and leaves the chosen task to its trigger rule.
        ("far", ["a", "b", "join"]),
        ("group", ["a", "b", "join"]),
        (["group", "a"], ["b"]),
        ("group.inner", ["a", "b", "join"]),
        # All that is directly below comes after these.
        ("before", []),
        ("choose", []),
    ],
)
def test_direct_downstream_tasks_that_are_not_chosen_are_skipped_but_not_those_below_a_chosen_task(
    choice: Any, skipped: list[str]
) -> None:
    _, ti = run(branching(choice))

    assert ti.skipped == skipped


def test_the_result_of_a_branch_is_its_choice_in_the_same_order() -> None:
    assert run(branching("a"))[0] == "a"
    assert run(branching(["b", "a"]))[0] == ["b", "a"]
    assert run(branching(["group", "a"]))[0] == ["group", "a"]
    assert run(branching({"b", "a"}))[0] == ["a", "b"]


def test_a_decision_is_pushed_as_in_airflow() -> None:
    """Under skipmixin_key, as Airflow 3.3.2 does it; nothing if no task is directly below, or none to skip."""
    with DAG("d"):
        alone = BranchPythonOperator(task_id="alone", python_callable=lambda: "other")
        EmptyOperator(task_id="other")
        stop = ShortCircuitOperator(task_id="stop", python_callable=bool)
        stop >> EmptyOperator(task_id="a") >> EmptyOperator(task_id="b")
        empty = ShortCircuitOperator(task_id="empty", python_callable=bool)
        empty >> EmptyOperator(task_id="down").as_teardown()

    assert run(branching("a"))[1].pushed == {"skipmixin_key": {"followed": ["a", "join"]}, "return_value": "a"}
    assert run(branching(None))[1].pushed == {"skipmixin_key": {"followed": []}}
    assert run(stop)[1].pushed == {"skipmixin_key": {"skipped": ["a", "b"]}}
    assert run(alone)[1].pushed == run(empty)[1].pushed == {}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("aa", "not a task or task group; did you mean 'a'"),
        (7, "must return a task ID, a list of them or None, not 7"),
        (["a", 7], "must return task IDs, not 7"),
        (True, "not True"),
    ],
)
def test_a_wrong_choice_fails_with_one_sentence(choice: Any, message: str) -> None:
    with pytest.raises(FailTask, match=message):
        run(branching(choice))


def test_task_branch_takes_arguments_and_context() -> None:
    with DAG("d"):

        @task.branch
        def choose(prefix: str, ti: Any = None) -> str:
            return f"{prefix}_{ti.try_number}"

        chosen, other = EmptyOperator(task_id="go_1"), EmptyOperator(task_id="go_2")
        operator = choose("go")
        operator >> [chosen, other]

    assert run(operator.operator)[1].skipped == ["go_2"]


@pytest.mark.parametrize(("everything", "skipped"), [(True, ["a", "b", "c"]), (False, ["a"])])
@pytest.mark.parametrize("condition", [0, "", None, False])
def test_a_short_circuit_skips_all_downstream_tasks_or_the_direct_ones(
    everything: bool, skipped: list[str], condition: Any
) -> None:
    with DAG("d"):
        first = ShortCircuitOperator(task_id="first", python_callable=lambda: condition, ignore_downstream_trigger_rules=everything)
        a, b, c, down = (EmptyOperator(task_id=name) for name in ("a", "b", "c", "down"))
        first >> a >> b >> c >> down
        down.is_teardown = True

    result, ti = run(first)

    assert (result, ti.skipped) == (condition, skipped)


def test_a_short_circuit_that_continues_skips_nothing_and_returns_its_result() -> None:
    with DAG("d"):

        @task.short_circuit
        def first() -> list[int]:
            return [1]

        operator = first()
        operator >> EmptyOperator(task_id="a")

    assert run(operator.operator) == ([1], Ti("first"))


@pytest.mark.parametrize(
    ("schedule", "run_type", "now", "latest"),
    [
        ("@hourly", "scheduled", NOON + timedelta(minutes=59), True),
        ("@hourly", "scheduled", NOON + timedelta(minutes=61), False),
        ("@hourly", "backfill", NOON + timedelta(days=1), False),
        ("@hourly", "manual", NOON + timedelta(days=1), True),
        (None, "scheduled", NOON + timedelta(days=1), True),
    ],
)
def test_latest_only_continues_in_the_latest_run_of_the_schedule(
    schedule: str | None, run_type: str, now: datetime, latest: bool
) -> None:
    with DAG("d", schedule=schedule, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        only = LatestOnlyOperator(task_id="only")
        only >> EmptyOperator(task_id="a") >> EmptyOperator(task_id="b")

    _, ti = run(only, Ti("only", clock=now), run_type=run_type)

    assert ti.skipped == ([] if latest else ["a"])


@pytest.mark.parametrize(
    ("kind", "arguments", "zone", "inside"),
    [
        (BranchDateTimeOperator, {"target_lower": time(11), "target_upper": time(13)}, UTC, True),
        (BranchDateTimeOperator, {"target_lower": time(13), "target_upper": time(14)}, UTC, False),
        (BranchDateTimeOperator, {"target_lower": time(11), "target_upper": time(1)}, UTC, True),  # past midnight
        (BranchDateTimeOperator, {"target_lower": datetime(2026, 3, 4, 11, tzinfo=UTC), "target_upper": None}, UTC, True),
        (BranchDateTimeOperator, {"target_lower": None, "target_upper": datetime(2026, 3, 4, 11)}, UTC, False),
        (BranchDayOfWeekOperator, {"week_day": "wednesday"}, UTC, True),
        (BranchDayOfWeekOperator, {"week_day": ["Monday", "TUESDAY"]}, UTC, False),
        # A zone that is only an offset.
        (BranchDateTimeOperator, {"target_lower": time(17, 29), "target_upper": time(17, 31)}, OFFSET, True),
        (BranchDayOfWeekOperator, {"week_day": "wednesday"}, OFFSET, True),
    ],
)
def test_a_branch_by_time_or_day(kind: Any, arguments: dict[str, Any], zone: Any, inside: bool) -> None:
    with DAG("d", start_date=datetime(2026, 1, 1, tzinfo=zone)):
        branch = kind(task_id="branch", follow_task_ids_if_true="a", follow_task_ids_if_false=["b"], **arguments)
        branch >> [EmptyOperator(task_id="a"), EmptyOperator(task_id="b")]

    assert run(branch)[1].skipped == (["b"] if inside else ["a"])


def test_a_branch_by_day_may_take_the_logical_date() -> None:
    with DAG("d"):
        branch = BranchDayOfWeekOperator(
            task_id="branch", follow_task_ids_if_true="a", follow_task_ids_if_false="b", week_day="wednesday",
            use_task_logical_date=True,
        )  # fmt: skip
        branch >> [EmptyOperator(task_id="a"), EmptyOperator(task_id="b")]

    assert run(branch, Ti("branch", clock=NOON + timedelta(days=3)))[1].skipped == ["b"]


def test_a_day_that_does_not_exist_is_refused() -> None:
    with DAG("d"), pytest.raises(DagError, match="week_day cannot be 'wensday'; did you mean 'wednesday'"):
        BranchDayOfWeekOperator(task_id="b", follow_task_ids_if_true="a", follow_task_ids_if_false="b", week_day="wensday")


def test_conditions_above_a_task_skip_it() -> None:
    with DAG("d"):

        @task.run_if(lambda context: context["run_id"] == "r")
        @task.skip_if(lambda context: (context["ti"].try_number > 1, "not again"), "never shown")
        @task
        def once() -> str:
            return "ran"

        @task.run_if(lambda context: False, "not today")
        @task.bash
        def never() -> str:
            return "true"

        ran, skipped = once(), never()

    assert run(ran.operator)[0] == "ran"
    with pytest.raises(SkipTask, match="not again"):
        run(ran.operator, Ti("once", try_number=2))
    with pytest.raises(SkipTask, match="not today"):
        run(skipped.operator)
    with pytest.raises(DagError, match="must be above another @task"):
        task.run_if(lambda context: True)(lambda: None)
