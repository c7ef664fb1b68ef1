"""Rows become dataclasses by the names of their columns, and parameters of prepared statements have names."""

from dataclasses import dataclass

import pytest

from paceline.states import TaskState
from scheduler.store.db import rows


@dataclass(frozen=True, slots=True)
class One:
    id: int
    state: TaskState
    note: str = "none"


def test_columns_are_matched_by_name_in_any_order() -> None:
    assert rows.objects(One, ["state", "note", "id"], [("success", "x", 7)]) == [One(7, TaskState.SUCCESS, "x")]


def test_a_column_without_a_field_is_ignored_and_a_field_with_a_default_needs_no_column() -> None:
    assert rows.objects(One, ["id", "more", "state"], [(7, None, "queued")]) == [One(7, TaskState.QUEUED)]


def test_null_is_none_also_where_a_state_is_expected() -> None:
    (found,) = rows.objects(One, ["id", "state"], [(None, None)])

    assert found.state is None


@pytest.mark.parametrize("columns", [["id"], ["id", "state", "state"]])
def test_a_row_without_a_field_or_with_two_columns_for_it_is_refused(columns: list[str]) -> None:
    with pytest.raises(TypeError, match="is no One: state"):
        rows.objects(One, columns, [(7, "queued", "queued")])
