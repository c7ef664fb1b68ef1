"""Transient errors of PostgreSQL, and errors after which nothing was stored."""

import psycopg2
import pytest
from psycopg2 import errors

from scheduler.store.db import sqlstates


def error(code: str) -> psycopg2.Error:
    """As psycopg2 makes it of a code."""
    error = errors.lookup(code)()
    error.__setstate__({"pgcode": code})
    return error


PASSING = [
    "08000", "08003", "08006", "40001", "40P01", "25006", "25P03", "0A000", "53100", "53200", "53300", "55P03", "57014", "57P01",
    "57P02", "57P03", "58030",
]  # fmt: skip
LASTING = ["23505", "42501", "42P01", "22021", "54000", "23514", "25P02"]


@pytest.mark.parametrize("code", PASSING)
def test_transient_errors_are_retried(code: str) -> None:
    assert sqlstates.is_passing(error(code))


@pytest.mark.parametrize("code", LASTING)
def test_errors_of_the_call_are_not_retried(code: str) -> None:
    assert not sqlstates.is_passing(error(code))


@pytest.mark.parametrize("lost", [psycopg2.OperationalError("x"), psycopg2.InterfaceError("x"), psycopg2.DatabaseError("x")])
def test_a_lost_connection_has_no_code_and_passes(lost: psycopg2.Error) -> None:
    assert sqlstates.is_passing(lost)
    assert not sqlstates.is_undone(lost), "it may have been lost after the commit"


def test_an_error_that_is_not_of_the_database_does_not_pass() -> None:
    assert not sqlstates.is_passing(ValueError("x"))
    assert not sqlstates.is_passing(None)


@pytest.mark.parametrize("code", ["40001", "40P01", "25006", "0A000", "53300", "57P03"])
def test_after_a_refusal_nothing_was_stored(code: str) -> None:
    assert sqlstates.is_undone(error(code))


@pytest.mark.parametrize("code", ["57P01", "57P02", "08006", "58030"])
def test_after_an_end_that_may_have_come_with_the_commit_nothing_is_done_again_by_itself(code: str) -> None:
    assert not sqlstates.is_undone(error(code))
