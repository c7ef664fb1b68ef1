"""How a try ended, as one value. Classify first, act second: nothing here touches the database, a log or a clock."""

import hashlib
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.authoring import deferral, xcom
from scheduler.authoring.deferral import TaskDeferred, TaskRescheduled
from scheduler.exceptions import FailTask, SkipTask, XComError
from scheduler.masking import secrets_masker
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.worker.claims import Deferral

#: Longest reason that is stored; a log holds the whole text.
MAX_REASON_CHARACTERS = 2000
#: Most JSON that a deferral may carry: a waiter keeps a thousand of them.
MAX_DEFERRAL_BYTES = 65_536


class TaskStopped(BaseException):
    """The worker told this task to stop; the message says why. Not an Exception, so that a broad except does not eat it."""


class TryFailed(Exception):
    """How a failed try ends for Celery, so that Flower shows a failure; PostgreSQL has the outcome already."""


@dataclass(frozen=True, slots=True)
class Success:
    """The task did its work; `result` is the JSON text of what it returned, `skip` what a branch skips (None for no branch)."""

    result: str | None = None
    skip: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The try failed and another one follows after `delay_s` seconds."""

    reason: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Skip:
    """The task asked to be skipped."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The task failed for good."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reschedule:
    """A sensor whose condition does not hold yet: the same try looks again after `delay_s` seconds, from `resume` on."""

    delay_s: float
    resume: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Defer:
    """The same try goes on in a method once a trigger fires, or after `timeout_s` seconds with an error."""

    deferral: Deferral
    resume: dict[str, Any]
    timeout_s: float | None


Outcome = Success | Retry | Skip | Fail | Reschedule | Defer


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """What the fate of a failed try depends on; `logical_date` only varies the jitter of the backoff."""

    dag_id: str
    task: SerializedTask
    run_id: str
    logical_date: datetime | None
    try_number: int
    max_tries: int
    #: The DAG file, relative to the DAGs folder.
    file: str = ""


def of_error(error: BaseException, attempt: Try, cause: str | None = None) -> Outcome:
    """What an exception that left user code means for the try; `cause` says it better than its own words."""
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
    if isinstance(error, FailTask | XComError) or not may_retry(attempt.try_number, attempt.max_tries):
        return Fail(reason)
    # A task that was stopped from outside did nothing wrong, so it need not wait.
    return Retry(reason, 0.0 if isinstance(error, TaskStopped) else retry_delay_s(attempt))


def _deferred(asked: TaskDeferred, file: str) -> Defer:
    classpath, arguments = deferral.serialized(asked.trigger)
    kwargs = deferral.encode(asked.kwargs, "kwargs of defer()")
    xcom.encode([arguments, kwargs], MAX_DEFERRAL_BYTES, name="trigger and kwargs of defer()")
    # A class of a DAG file, or of a module beside it, is there once the file is loaded.
    return Defer(
        Deferral(classpath=classpath, kwargs=arguments, file=None if classpath.startswith("scheduler.") else file),
        {"method": asked.method_name, "kwargs": kwargs},
        asked.timeout_s,
    )


def may_retry(try_number: int, max_tries: int) -> bool:
    """Whether a try with this number is followed by another one if it fails."""
    return max_tries != 0 and try_number <= max_tries


def retry_delay_s(attempt: Try) -> float:
    """Seconds to wait before the next try; with a backoff in [b, 2b), the same for the same try in any process."""
    task = attempt.task
    multiplier = task.retry_exponential_backoff
    if multiplier in (0, 1):
        return min(task.retry_delay_s, task.max_retry_delay_s)
    try:
        base = max(1, math.ceil(task.retry_delay_s * multiplier ** (attempt.try_number - 1)))
    except OverflowError:
        return task.max_retry_delay_s
    moment = attempt.run_id if attempt.logical_date is None else attempt.logical_date.isoformat()
    name = f"{attempt.dag_id}#{task.task_id}#{moment}#{attempt.try_number}"
    jitter = int(hashlib.sha1(name.encode(errors="replace"), usedforsecurity=False).hexdigest(), 16) % base
    return float(min(base + jitter, task.max_retry_delay_s))


def describe(error: BaseException) -> str:
    """One line for people: what was raised, and what it said."""
    if isinstance(error, FailTask | TaskStopped):
        return clean(str(error))
    kind = type(error).__name__
    if isinstance(error, SystemExit):
        return clean(f"SystemExit: the task called sys.exit({'' if error.code is None else repr(error.code)}).")
    try:
        text = str(error).strip()
    except Exception:
        text = "(its message cannot be shown)"
    return clean(f"{kind}: {text}" if text else kind)


def clean(text: str) -> str:
    """Text that PostgreSQL can store: no secret, no NUL, no lone surrogate, not too long."""
    safe = secrets_masker.redact(text).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return safe if len(safe) <= MAX_REASON_CHARACTERS else safe[: MAX_REASON_CHARACTERS - 1] + "…"
