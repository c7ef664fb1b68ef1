"""Runs of Airflow and of Paceline are compared by DAG and logical date."""

from datetime import UTC, datetime, timedelta, timezone

from scheduler.dagfiles.migrate.shadow import Difference, Run, differences, pairs, run_of

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def test_only_finished_runs_with_a_date_are_compared() -> None:
    assert run_of("r", "2026-01-01T00:00:00Z", "success") == Run("r", DAY, "success")
    assert run_of("r", DAY.astimezone(timezone(timedelta(hours=1))), "failed") == Run("r", DAY, "failed")
    assert run_of("r", None, "success") is None
    assert run_of("r", DAY, "running") is None


def test_runs_of_the_same_date_are_a_pair() -> None:
    theirs = [Run("a", DAY, "success"), Run("b", DAY + timedelta(days=1), "success")]
    ours = [Run("c", DAY + timedelta(days=1), "failed"), Run("d", DAY + timedelta(days=2), "success")]

    assert pairs(theirs, ours) == [(theirs[1], ours[0])]


def test_each_state_that_differs_is_one_difference() -> None:
    pair = (Run("a", DAY, "success"), Run("b", DAY, "failed"))
    theirs = {("same", -1): "success", ("other", -1): "success", ("mapped", 0): "skipped", ("theirs", -1): "failed"}
    ours = {("same", -1): "success", ("other", -1): "failed", ("mapped", 0): "skipped", ("mapped", 1): "success"}

    assert list(differences("d", pair, theirs, ours)) == [
        Difference("d", DAY, "", -1, "success", "failed"),
        Difference("d", DAY, "mapped", 1, None, "success"),
        Difference("d", DAY, "other", -1, "success", "failed"),
        Difference("d", DAY, "theirs", -1, "failed", None),
    ]


def test_equal_runs_have_no_difference() -> None:
    run = Run("a", DAY, "success")

    assert list(differences("d", (run, run), {("t", -1): "success"}, {("t", -1): "success"})) == []
