"""The retry policy: which errors are repeated, what is logged, and when it gives up."""

import pytest

from paceline.exceptions import CredentialsError, UnreachableError
from scheduler.process import retries


class Server:
    """Raises these errors, one for each call, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


def test_a_server_is_awaited_and_only_the_first_error_is_logged() -> None:
    server, lines = Server(UnreachableError("no route"), UnreachableError("no answer")), []

    retries.await_server(server, lines.append, pause_s=0.0)

    assert (server.errors, lines) == ([], ["no route Waiting for it."])


@pytest.mark.parametrize("error", [CredentialsError("wrong password"), KeyError("other")])
def test_an_error_that_waiting_cannot_fix_is_raised_unchanged(error: Exception) -> None:
    lines: list[str] = []

    with pytest.raises(type(error)) as raised:
        retries.await_server(Server(error), lines.append, pause_s=0.0)

    assert raised.value is error
    assert lines == []


def test_each_repeated_error_is_passed_on_with_its_number() -> None:
    errors = [ValueError("a"), ValueError("b")]
    seen: list[tuple[BaseException, int]] = []

    retries.repeated(
        lambda error: isinstance(error, ValueError), pause_s=0.0, failed=lambda error, number: seen.append((error, number))
    )(Server(*errors))

    assert seen == [(errors[0], 1), (errors[1], 2)]
