"""The outcomes of tries, as values. They are classified before any action: no code here uses the database, a log or a clock."""

import errno
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import secrets_masker
from paceline.authoring import deferral, xcom
from paceline.authoring.deferral import TaskRescheduled
from paceline.authoring.retry_policy import RetryAfter
from paceline.exceptions import FailTask, SkipTask, TaskDeferred, TaskStopped, XComError
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.worker.claims import Claim, Deferral

#: Maximum length of a stored reason. The log has the full text.
MAX_REASON_CHARACTERS = 2000
#: Maximum size of the JSON of a deferral. A waiter keeps a thousand of them.
MAX_DEFERRAL_BYTES = 65_536


class TryFailed(Exception):
    """Ends a failed try in Celery, so that Flower shows a failure. PostgreSQL has the outcome already."""


@dataclass(frozen=True, slots=True)
class Success:
    """The task succeeded. `result` is its return value in JSON, `skip` the tasks that a branch skips (None if not a branch)."""

    result: str | None = None
    skip: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The try failed, and the next one follows after `delay_s` seconds."""

    reason: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Skip:
    """The task requested to be skipped."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The task failed without another retry."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reschedule:
    """The condition of a sensor is not met yet. The same try checks again after `delay_s` seconds, with the data in `resume`."""

    delay_s: float
    resume: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Defer:
    """The same try continues in a method when a trigger fires, or with an error after `timeout_s` seconds."""

    deferral: Deferral
    resume: dict[str, Any]
    timeout_s: float | None


Outcome = Success | Retry | Skip | Fail | Reschedule | Defer


@dataclass(frozen=True, slots=True)
class Try:
    """The data that decides whether and when a failed try is followed by another."""

    claim: Claim
    task: SerializedTask
    #: The DAG file, relative to the DAGs folder.
    file: str


def of_error(error: BaseException, attempt: Try, cause: str | None = None) -> Outcome:
    """Return the outcome for an exception of user code. `cause` is a better reason than its message, if given."""
    if isinstance(error, SkipTask):
        return Skip(clean(str(error)))
    if isinstance(error, TaskRescheduled):
        return Reschedule(error.delay_s, error.resume)
    if isinstance(error, TaskDeferred):
        try:
            return _deferred(error, attempt.file)
        except Exception as refused:
            error = refused
    reason = describe(error) if cause is None else clean(cause)
    if isinstance(error, FailTask | XComError) or not may_retry(attempt.claim.try_number, attempt.claim.max_tries):
        return Fail(reason)
    if isinstance(error, RetryAfter):
        return Retry(reason, error.delay_s)
    # A task that was stopped from outside is not the cause, so its retry needs no delay.
    return Retry(reason, 0.0 if isinstance(error, TaskStopped) else retry_delay_s(attempt))


def _deferred(request: TaskDeferred, file: str) -> Defer:
    classpath, arguments = deferral.serialized(request.trigger)
    kwargs = deferral.encode(request.kwargs, "kwargs of defer()")
    xcom.encode([arguments, kwargs], MAX_DEFERRAL_BYTES, name="trigger and kwargs of defer()")
    # A class of a DAG file, or of a module in its folder, exists only after the file is loaded.
    return Defer(
        Deferral(classpath=classpath, kwargs=arguments, file=None if classpath.startswith("paceline.") else file),
        {"method": request.method_name, "kwargs": kwargs},
        request.timeout_s,
    )


def may_retry(try_number: int, max_tries: int) -> bool:
    """Whether another try follows a failed try with this number."""
    return max_tries != 0 and try_number <= max_tries


def retry_delay_s(attempt: Try) -> float:
    """Return the delay before the next try, in seconds. With backoff b it is in [b, 2b), and the same for a try in any process."""
    task, claim = attempt.task, attempt.claim
    multiplier = task.retry_exponential_backoff
    if multiplier in (0, 1):
        return min(task.retry_delay_s, task.max_retry_delay_s)
    try:
        base = max(1, math.ceil(task.retry_delay_s * multiplier ** (claim.try_number - 1)))
    except OverflowError:
        return task.max_retry_delay_s
    moment = claim.run_id if claim.logical_date is None else claim.logical_date.isoformat()
    name = f"{claim.dag_id}#{task.task_id}#{moment}#{claim.try_number}"
    jitter = int(hashlib.sha1(name.encode(errors="replace"), usedforsecurity=False).hexdigest(), 16) % base
    return float(min(base + jitter, task.max_retry_delay_s))


def wrote_to_code(error: BaseException, versions: Path) -> str | None:
    """The cause if a task wanted to write beside its DAG file. The versions of bundles, below `versions`, are read-only."""
    if not isinstance(error, OSError) or error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return None
    if not Path(str(error.filename)).is_relative_to(versions):
        return None
    return (
        f"{describe(error)}: the files beside a DAG file are a version of its code, which is read-only. Let the task write to"
        " another folder, such as one of tempfile, or set bundles.pin_dags_folder = false if the DAG is of the DAGs folder."
    )


def describe(error: BaseException) -> str:
    """Describe an exception for users: its type and message."""
    if isinstance(error, FailTask | RetryAfter | TaskStopped):
        return clean(str(error))
    if isinstance(error, SystemExit):
        return clean(f"SystemExit: the task called sys.exit({'' if error.code is None else repr(error.code)}).")
    try:
        text = str(error).strip()
    except Exception:
        text = "(its message cannot be shown)"
    kind = type(error).__name__
    return clean(f"{kind}: {text}" if text else kind)


def clean(text: str) -> str:
    """Return text that PostgreSQL can store: cut, with secrets masked, and without NUL and lone surrogates."""
    safe = secrets_masker.redact(text).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return safe if len(safe) <= MAX_REASON_CHARACTERS else safe[: MAX_REASON_CHARACTERS - 1] + "…"
