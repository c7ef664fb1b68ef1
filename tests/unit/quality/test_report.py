"""The report of checks as text, and checks that the schema alone decides."""

import pytest

from paceline.exceptions import FailTask
from paceline.quality import ExpectationError, Report, Result
from paceline.quality.suite import wrong_columns

TYPES = {"id": "bigint", "name": "string", "tags": "array<string>"}


@pytest.mark.parametrize(
    ("wanted", "exact", "wrong"),
    [
        ({"id": "bigint", "tags": "array<string>"}, False, ""),
        ({"id": "long", "name": None}, False, ""),
        ({"id": "int"}, False, "id is bigint"),
        ({"nmae": "string"}, False, "nmae is missing"),
        ({"id": "LONG"}, True, "name is too many, tags is too many"),
    ],
)
def test_columns_are_compared_by_name_and_type(wanted: dict[str, str | None], exact: bool, wrong: str) -> None:
    assert wrong_columns(TYPES, wanted, exact=exact) == wrong


def test_a_report_shows_failed_checks_with_their_rows() -> None:
    report = Report((
        Result(frame="a", promise="(id) is unique", status="failed", failing=1_200, tolerated=7, sample=({"id": 2},)),
        Result(frame="", promise="has 3 rows", status="warned", note="it has 4"),
        Result(frame="a", promise="id is there", status="passed", failing=1, tolerated=7),
    ))  # fmt: skip

    assert str(report) == ("  a: (id) is unique - broken by 1,200 rows, 7 tolerated\n    {'id': 2}\n  has 3 rows - but it has 4")
    assert not report.passed
    error = ExpectationError(report)
    assert isinstance(error, FailTask)
    assert str(error).startswith("1 of 3 checks failed:\n  a: (id) is unique")
