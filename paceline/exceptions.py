"""Every error that Paceline raises. The docstring of a class is its default message, `exit_code` that of a command."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any


class PacelineError(Exception):
    """Something went wrong in Paceline."""

    exit_code = 1

    def __init__(self, problem: str = "", *, fix: str = "") -> None:
        self.problem, self.fix = problem or type(self).__doc__ or "", fix
        super().__init__(f"{problem} {fix}" if fix else self.problem)


class SkipTask(PacelineError):
    """Raised by user code: end this try as skipped."""


class FailTask(PacelineError):
    """Raised by user code: fail this task now, whatever retries remain."""


class TaskTimeout(PacelineError):
    """The task ran longer than its execution_timeout."""


class SensorTimeout(FailTask):
    """The condition of a sensor did not come true within its timeout."""


class ExternalTaskFailedError(PacelineError):
    """The run or task of another DAG for which a task waits has failed. A retry of the task looks again."""


class TaskDeferralError(PacelineError):
    """The trigger that a deferred task waited for failed."""


class TaskDeferralTimeout(TaskDeferralError):
    """The trigger that a deferred task waited for did not fire within the timeout."""


class TaskDeferred(BaseException):
    """Raised by `self.defer(...)`: continue in `method_name` when `trigger` fires. `timeout` is a timedelta or seconds.

    Not an Exception, so that `except Exception` does not catch it.
    """

    def __init__(
        self,
        *,
        trigger: Any,
        method_name: str,
        kwargs: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = None,
    ) -> None:
        super().__init__(f"deferred to {type(trigger).__name__}")
        self.trigger = trigger
        self.method_name = method_name
        self.kwargs = dict(kwargs or {})
        self.timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


class TaskStopped(BaseException):
    """The worker stops this task. The message is the reason. It is not an Exception, so that a broad `except` does not catch it."""


class AirflowRescheduleException(PacelineError):
    """Raised by user code: this try continues at `reschedule_date`, and holds no worker until then."""

    def __init__(self, reschedule_date: datetime) -> None:
        super().__init__(f"rescheduled for {reschedule_date}")
        self.reschedule_date = reschedule_date


class DownstreamTasksSkipped(PacelineError):
    """Raised by user code of a branch: the task succeeds, and these downstream tasks are skipped."""

    def __init__(self, *, tasks: Iterable[str]) -> None:
        self.tasks = tuple(tasks)
        super().__init__(f"skips {', '.join(map(str, self.tasks))}")


class DagError(PacelineError):
    """A DAG file contains a mistake; the message names the DAG, the task and what to write instead."""

    exit_code = 2
    #: The place in the author's file; set by authoring/source.py.
    file: str | None = None
    line: int | None = None


#: Errors that are alike and in one line, and yet shown one by one.
MOST_ALIKE = 3


class DagErrors(DagError):
    """A DAG file contains several mistakes; the message has a line for each, and `errors` are the errors in order.

    Of many that are alike, such as those of a task in a loop, it has the first and their number.
    """

    def __init__(self, errors: Sequence[DagError]) -> None:
        self.errors = tuple(errors)
        self.file, self.line = errors[0].file, errors[0].line
        alike: dict[object, list[DagError]] = {}
        for error in errors:
            # The names of tasks in a loop differ by a number.
            alike.setdefault((error.file, error.line, re.sub(r"\d+", "0", str(error))), []).append(error)
        shown: list[str] = []
        for group in alike.values():
            texts = [f"line {error.line}: {error}" if error.file == self.file and error.line else str(error) for error in group]
            shown += texts if len(texts) <= MOST_ALIKE else [f"{texts[0]} (and {len(texts) - 1} more like this)"]
        super().__init__("\n".join((f"The file has {len(errors)} errors:", *shown)))


class DagCycleError(DagError):
    """The tasks of a DAG form a cycle."""


class DuplicateTaskError(DagError):
    """A DAG contains two tasks with the same ID."""


class TimetableError(DagError):
    """A schedule is not valid."""


class XComError(PacelineError):
    """A return value cannot be stored as an XCom."""


class TemplateError(PacelineError):
    """A template cannot be rendered; the message names the field and the undefined name."""


class ParamError(PacelineError):
    """A run lacks a param, or the value given for one does not fit its schema."""

    exit_code = 2


class SettingsError(PacelineError):
    """A setting is unknown or its value is not allowed."""

    exit_code = 2


class UsageError(PacelineError):
    """A command or request that makes no sense, such as two options that exclude each other."""

    exit_code = 2


class NotFoundError(PacelineError):
    """There is no such DAG, run, task or pool."""

    exit_code = 3


class UnreadableVersionError(PacelineError):
    """A stored DAG version cannot be read."""


class ConflictError(PacelineError):
    """The request conflicts with something that exists."""


class BackfillError(PacelineError):
    """A DAG cannot be backfilled as asked."""

    exit_code = 2


class CannotReproduceError(PacelineError):
    """The run cannot be reproduced."""

    exit_code = 2


class NoTablesError(PacelineError):
    """There are no tables where this task runs."""


class StaleTryError(PacelineError):
    """A task wrote something after its try had ended: it was cleared, declared lost, or started again by another worker."""


#: The advice if no server listens on a socket file, which is how the embedded servers are reached.
START_EMBEDDED = "Start everything on this machine with `paceline standalone`, or set PACELINE_{}_URL."


class UnreachableError(PacelineError):
    """The database or the broker does not answer."""

    exit_code = 4


class ReadOnlyError(UnreachableError):
    """The database accepts no writes: it is a standby, or was set read-only."""


class CredentialsError(UnreachableError):
    """The database or the broker rejected the user name or password; correct the URL and start again."""


class SchemaError(UnreachableError):
    """The database schema does not fit this version of Paceline."""


class WaitTimeoutError(PacelineError):
    """The time allowed for waiting is over."""

    exit_code = 5


class AirflowOptionalProviderFeatureException(PacelineError):
    """Raised by packages for Airflow: an optional part of them is not installed."""


class AirflowSecretsBackendAccessDenied(PermissionError):
    """Raised by user code: a secret must not be read."""


class RemovedInAirflow4Warning(DeprecationWarning):
    """Issued by packages for Airflow."""


def no_dag(dag_id: str) -> NotFoundError:
    """The error for a DAG that is unknown, or whose file is gone or cannot be loaded."""
    return NotFoundError(
        f"There is no DAG {dag_id!r}: `paceline dags list` lists all, `paceline dags errors` those that failed to load."
    )


class AirflowProviderDeprecationWarning(DeprecationWarning):
    """Issued by packages for Airflow."""


# The names that files for Airflow use. Several of them have one meaning here.
AirflowException = AirflowRuntimeError = AirflowInternalRuntimeError = PacelineError
AirflowFailException = AirflowInactiveAssetInInletOrOutletException = FailTask
AirflowSkipException = SkipTask
AirflowSensorTimeout = SensorTimeout
AirflowTaskTimeout = TaskTimeout
AirflowTaskTerminated = TaskStopped
AirflowConfigException = SettingsError
AirflowBadRequest = UsageError
AirflowDagCycleException = DagCycleError
AirflowDagDuplicatedIdException = AirflowDagInconsistent = AirflowFileParseException = DagError
AirflowUnsupportedFileTypeException = TaskAlreadyInTaskGroup = UnmappableOperator = NotMapped = DagError
AirflowClusterPolicyError = AirflowClusterPolicyViolation = AirflowClusterPolicySkipDag = DagError
FailFastDagInvalidTriggerRule = FailStopDagInvalidTriggerRule = DagError
AirflowClearRunningTaskException = DagRunTypeNotAllowed = ConflictError
AirflowWebServerTimeout = WaitTimeoutError
InvalidPartitionKeyError = DagNotPartitionedError = UsageError
AirflowTimetableInvalid = TimetableError
DuplicateTaskIdFound = DuplicateTaskError
ParamValidationError = ParamError
AirflowNotFoundException = TaskNotFound = NodeNotFound = DagNotFound = DagRunNotFound = PoolNotFound = NotFoundError
TaskInstanceNotFound = DagCodeNotFound = NotFoundError
DagRunAlreadyExists = TaskAlreadyRunningError = VariableNotUnique = ConnectionNotUnique = ConflictError
XComNotFound = UnmappableXComTypePushed = UnmappableXComLengthPushed = XComForMappingNotPushed = XComError
SerializationError = DeserializationError = DeserializingResultError = XComError
