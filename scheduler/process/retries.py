"""The retry policy, by tenacity: which errors pass, after which pause a function is called again, and until when."""

from collections.abc import Callable
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_fixed

from paceline.exceptions import CredentialsError, UnreachableError


def repeated(
    passes: Callable[[BaseException], bool],
    *,
    pause_s: float | Callable[[RetryCallState], float],
    failed: Callable[[BaseException, int], object] | None = None,
    **more: Any,
) -> Retrying:
    """Return a callable that calls a function, and repeats the call after a pause while its errors are temporary.

    The last error is raised unchanged. Before each pause, `failed` receives the error and its number. `more` are options of
    tenacity, such as `stop`.
    """

    def before_sleep(state: RetryCallState) -> None:
        if failed is not None and state.outcome is not None and (error := state.outcome.exception()) is not None:
            failed(error, state.attempt_number)

    wait = pause_s if callable(pause_s) else wait_fixed(pause_s)
    return Retrying(retry=retry_if_exception(passes), wait=wait, before_sleep=before_sleep, reraise=True, **more)


def await_server(check: Callable[[], None], log: Callable[[str], None], *, pause_s: float = 1.0) -> None:
    """Call `check` until a server answers, and log its first error. Wrong credentials end the wait."""
    repeated(
        lambda error: isinstance(error, UnreachableError) and not isinstance(error, CredentialsError),
        pause_s=pause_s,
        failed=lambda error, number: log(f"{error} Waiting for it.") if number == 1 else None,
    )(check)
