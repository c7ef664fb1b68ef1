"""The exception that a callback receives, made from the stored reason."""

import pytest

from scheduler.dagfiles.callback_context import exception_of
from scheduler.settings import log_paths


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("ValueError: no: luck", "ValueError('no: luck')"),
        ("TaskTimeout: late", "TaskTimeout('late')"),
        ("KeyError: 'a'", "PacelineError(\"KeyError: 'a'\")"),
        ("OwnError: x", "PacelineError('OwnError: x')"),
        ("SystemExit: the task called sys.exit(3).", "PacelineError('SystemExit: the task called sys.exit(3).')"),
        ("print: x", "PacelineError('print: x')"),
        ("its worker was lost", "PacelineError('its worker was lost')"),
        (None, "None"),
    ],
)
def test_an_exception_has_the_type_and_the_text_of_the_one_of_the_try(reason: str | None, expected: str) -> None:
    assert repr(exception_of(reason)) == expected


def test_the_page_of_a_try_has_an_address_if_that_of_the_pages_is_known() -> None:
    class Attempt:
        dag_id, run_id, task_id, map_index = "d", "manual__2026-01-01T00:00:00+00:00", "g.t", 3

    page = log_paths.page_of_try("https://paceline.example.org/", Attempt)

    assert page == "https://paceline.example.org/dags/d/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/g.t/3"
    assert log_paths.page_of_try("", Attempt) == ""
