"""Retry policies: `retry_policy=` of a task decides by its exception whether another try follows, and when."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, cast

from paceline.exceptions import FailTask, PacelineError, SkipTask

log = logging.getLogger(__name__)


class RetryAction(Enum):
    """The action after a failed try. No policy gives a task more tries than its `retries` allow."""

    RETRY = "retry"
    FAIL = "fail"
    #: As without a policy.
    DEFAULT = "default"


@dataclass(frozen=True)
class RetryDecision:
    """The decision of a policy: an `action`.

    Without `retry_delay`, the delay of the task applies. `reason` is stored with the state.
    """

    action: RetryAction = RetryAction.DEFAULT
    retry_delay: timedelta | None = None
    reason: str | None = None

    @classmethod
    def fail(cls, reason: str | None = None) -> RetryDecision:
        """Fail now, even if retries remain."""
        return cls(RetryAction.FAIL, reason=reason)

    @classmethod
    def retry(cls, delay: timedelta | None = None, reason: str | None = None) -> RetryDecision:
        """Try again, after `delay` if it is given."""
        return cls(RetryAction.RETRY, delay, reason)

    @classmethod
    def default(cls) -> RetryDecision:
        """Decide as without a policy."""
        return cls()


class RetryPolicy:
    """Base class of retry policies. Subclasses implement `evaluate`, which runs in the worker."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Mapping[str, Any] | None = None
    ) -> RetryDecision:
        """Decide about `exception`. `try_number` starts with 1; `max_tries` is the number of retries.

        It is not called for FailTask, SensorTimeout and SkipTask.
        """
        raise NotImplementedError(f"{type(self).__name__} has no evaluate().")


@dataclass(frozen=True)
class RetryRule:
    """One rule of an ExceptionRetryPolicy. `exception` is a class, its import path, or a list of these.

    With `match_subclasses=False`, the class of the exception must be exactly one of them. `action`, `retry_delay` and `reason`
    are those of the RetryDecision.
    """

    exception: str | type[BaseException] | list[str | type[BaseException]]
    action: RetryAction = RetryAction.RETRY
    retry_delay: timedelta | None = None
    reason: str | None = None
    match_subclasses: bool = True

    def matches(self, exception: BaseException) -> bool:
        """Whether the rule is about this exception."""
        kinds = self.exception if isinstance(self.exception, list) else [self.exception]
        known = tuple(found for kind in kinds if (found := _imported(kind)) is not None)
        return isinstance(exception, known) if self.match_subclasses else type(exception) in known


class ExceptionRetryPolicy(RetryPolicy):
    """Decides by the first of `rules` that matches the exception; by `default` if none does."""

    def __init__(self, rules: Sequence[RetryRule], default: RetryAction = RetryAction.DEFAULT) -> None:
        self.rules = list(rules)
        self.default = default

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Mapping[str, Any] | None = None
    ) -> RetryDecision:
        for rule in self.rules:
            if rule.matches(exception):
                return RetryDecision(rule.action, rule.retry_delay, rule.reason)
        return RetryDecision(self.default)


class RetryAfter(PacelineError):
    """Ends a try whose policy chose the delay before the next one."""

    def __init__(self, message: str, delay_s: float) -> None:
        super().__init__(message)
        self.delay_s = delay_s


def apply(policy: Any, error: Exception, context: Mapping[str, Any]) -> Exception:
    """The exception to raise in place of `error`, so that the decision of the policy applies.

    An error in the policy is logged, and the task is tried again as without a policy.
    """
    if isinstance(error, FailTask | SkipTask):
        return error
    ti = context["ti"]
    try:
        decision: RetryDecision = policy.evaluate(error, ti.try_number, ti.max_tries, context)
        reason = f"{type(error).__name__}: {error}" + (f" ({decision.reason})" if decision.reason else "")
        log.info("Retry policy: %s%s", decision.action.value, f", because {decision.reason}" if decision.reason else "")
    except Exception:
        log.exception("The retry policy failed; the task is tried again as without one.")
        return error
    if decision.action is RetryAction.FAIL:
        return FailTask(reason)
    if decision.action is RetryAction.RETRY and decision.retry_delay is not None:
        return RetryAfter(reason, decision.retry_delay.total_seconds())
    return error


def _imported(kind: str | type[BaseException]) -> type[BaseException] | None:
    """The class; None for a path that does not exist on this worker."""
    if isinstance(kind, type):
        return kind
    try:
        return cast(type[BaseException], pkgutil.resolve_name(kind))
    except (ImportError, AttributeError, ValueError):
        log.warning("The retry policy names the exception %r, which cannot be imported here.", kind)
        return None
