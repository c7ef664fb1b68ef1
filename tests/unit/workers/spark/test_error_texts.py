"""The text of PySpark's exceptions after the end of their JVM, with stand-ins for exceptions that query a JVM."""

import pytest

from paceline.exceptions import TaskTimeout
from workers.spark.sessions import python_side


def asks_a_jvm(alive: list[bool]) -> Exception:
    """An exception of a class of PySpark's whose message comes from a JVM that may have ended."""

    class Captured(Exception):
        def __str__(self) -> str:
            assert alive[0]
            return "no such column"

    Captured.__module__ = "pyspark.errors.exceptions.captured"
    return Captured()


def test_an_exception_has_the_same_text_after_the_end_of_its_jvm() -> None:
    alive = [True]
    error = asks_a_jvm(alive)

    python_side.keep_texts(error)
    alive[0] = False

    assert (str(error), type(error).__name__) == ("no such column", "Captured")
    assert type(error).__module__ == "pyspark.errors.exceptions.captured"


def test_those_it_was_raised_from_do_too() -> None:
    alive = [True]
    cause, context, one_of = asks_a_jvm(alive), asks_a_jvm(alive), asks_a_jvm(alive)
    cause.__context__ = context
    error = ExceptionGroup("several", [one_of])
    error.__cause__ = cause

    python_side.keep_texts(error)
    alive[0] = False

    assert [str(one) for one in (cause, context, one_of)] == ["no such column"] * 3


def test_an_exception_whose_jvm_has_ended_already_has_its_known_text() -> None:
    error = asks_a_jvm([False])
    error.errmsg = "An error occurred while calling o1.count"  # type: ignore[attr-defined]

    python_side.keep_texts(error)

    assert str(error) == "An error occurred while calling o1.count"


def test_exceptions_of_other_packages_are_left_alone() -> None:
    error = ValueError("mine")

    python_side.keep_texts(error)

    assert type(error) is ValueError


@pytest.mark.parametrize(("cause", "found"), [(TaskTimeout("too long"), True), (ValueError("no"), False)])
def test_an_interruption_is_found_in_the_exception_of_py4j(cause: Exception, found: bool) -> None:
    error = RuntimeError("Error while receiving")
    error.__cause__ = cause

    assert python_side.is_interruption(error) is found
