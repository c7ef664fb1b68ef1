"""Sensors, the tasks that wait for a condition: the base class, and those on a Python function, a file and a bash command."""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, Unpack

from paceline.authoring.deferral import BaseTrigger, TaskRescheduled
from paceline.authoring.fields import Check, Field, boolean, choice, optional
from paceline.authoring.operator import Operator
from paceline.authoring.task_arguments import TaskArguments
from paceline.authoring.triggers import FileTrigger, find_file
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import FailTask, NotFoundError, SensorTimeout, SkipTask, TaskDeferralTimeout, TaskTimeout
from paceline.operators import process
from paceline.operators.bash import context_variables
from paceline.operators.python import PythonArguments, PythonOperator

if TYPE_CHECKING:
    from paceline.authoring.task_instance import Context

#: Not below paceline, whose records a worker writes to its own log.
log = logging.getLogger(__name__)

WEEK_S = 7 * 24 * 3600.0
MODES = ("poke", "reschedule")


@dataclass(frozen=True, slots=True)
class PokeReturnValue:
    """A result of `poke` with more than a bool: whether the sensor `is_done`, and then `xcom_value`, the result of the task."""

    is_done: bool
    xcom_value: Any = None

    def __bool__(self) -> bool:
        return self.is_done


def _seconds(*, zero_allowed: bool) -> Check:
    return lambda checks, name, value: checks.duration(name, value, zero_allowed=zero_allowed).total_seconds()


class SensorArguments(TaskArguments, total=False):
    """The arguments of every sensor, in addition to those of all operators."""

    poke_interval: Annotated[timedelta | float, Field(60.0, _seconds(zero_allowed=True))]
    timeout: Annotated[timedelta | float, Field(WEEK_S, _seconds(zero_allowed=True))]
    mode: Annotated[str, Field("poke", choice(MODES))]
    soft_fail: Annotated[bool, Field(False, boolean)]
    never_fail: Annotated[bool, Field(False, boolean)]
    silent_fail: Annotated[bool, Field(False, boolean)]
    exponential_backoff: Annotated[bool, Field(False, boolean)]
    max_wait: Annotated[timedelta | float | None, Field(None, optional(_seconds(zero_allowed=False)))]


class DeferrableArguments(SensorArguments, total=False):
    """The arguments of sensors that can wait without a worker."""

    deferrable: Annotated[bool, Field(False, boolean)]


class BaseSensorOperator(Operator):
    """Base class of sensors: calls `poke` until it returns a true value, or `timeout` has passed since the first try started.

    - `poke_interval` (60), `timeout` (7 days) and `max_wait`: seconds or timedeltas. `max_wait` limits the interval.
    - `mode`: "poke" keeps the worker and the slots between two pokes, "reschedule" releases them.
    - `exponential_backoff`: double the interval after each poke, with jitter.
    - `soft_fail`: skip instead of failing on a timeout or FailTask. `never_fail`: skip on any error. Only one of the two can
      be True. `silent_fail`: log an error of a poke and poke again.

    A timeout raises SensorTimeout and is not retried. A retry does not start it again; a clear does.
    """

    declared: ClassVar[type] = SensorArguments

    poke_interval: float
    timeout: float
    mode: str
    soft_fail: bool
    never_fail: bool
    silent_fail: bool
    exponential_backoff: bool
    max_wait: float | None

    def __init__(self, **kwargs: Unpack[SensorArguments]) -> None:
        given: dict[str, Any] = {**kwargs}
        super().__init__(**given)
        if self.soft_fail and self.never_fail:
            raise self.argument_checks().refuse("only one of soft_fail and never_fail can be True.")

    @property
    def reschedule(self) -> bool:
        """Whether the sensor releases its worker between two pokes."""
        return self.mode == "reschedule"

    def poke(self, context: "Context") -> Any:
        """Whether the condition holds: a bool, or a PokeReturnValue."""
        raise NotImplementedError(f"{type(self).__name__} has no poke().")

    def execute(self, context: "Context") -> object:
        ti = context["ti"]
        pokes = (ti.resume or {}).get("pokes", 0)
        before_s = self._waited_s(ti)
        started = time.monotonic()
        while True:
            pokes += 1
            if result := self._poke(context):
                return result.xcom_value if isinstance(result, PokeReturnValue) else None
            elapsed_s = before_s + time.monotonic() - started
            if elapsed_s > self.timeout:
                self._give_up(f"The condition was not true within {self.timeout:g} s ({pokes} pokes in {elapsed_s:.0f} s).")
            wait_s = self.wait_s(pokes, elapsed_s, f"{ti.dag_id}#{ti.task_id}#{ti.start_date.isoformat()}")
            if self.reschedule:
                raise TaskRescheduled(wait_s, {"pokes": pokes})
            time.sleep(wait_s)

    def _waited_s(self, ti: Any) -> float:
        """Seconds since the first try started, which may have been on another worker: both times are from PostgreSQL's clock."""
        since = ti.first_start(self.retries)
        return 0.0 if since == ti.start_date and not ti.resume else (ti.now() - since).total_seconds()

    def wait_s(self, pokes: int, elapsed_s: float, name: str) -> float:
        """Seconds until the next poke, after `pokes` of them; `name` varies the jitter of the backoff."""
        if not self.exponential_backoff:
            return self.poke_interval
        try:
            base = max(int(self.poke_interval * 2.0 ** (pokes - 2)), 1)
        except OverflowError:
            base = int(WEEK_S)
        digest = hashlib.sha1(f"{name}#{pokes}".encode(errors="replace"), usedforsecurity=False).hexdigest()
        wait_s = min(float(base + int(digest, 16) % base), self.timeout - int(elapsed_s))
        return max(0.0, wait_s if self.max_wait is None else min(wait_s, self.max_wait))

    def resume_execution(self, next_method: str, next_kwargs: Mapping[str, Any] | None, context: Mapping[str, Any]) -> object:
        def resume() -> object:
            try:
                return super(BaseSensorOperator, self).resume_execution(next_method, next_kwargs, context)
            except TaskDeferralTimeout:
                self._give_up(f"The condition was not true within {self.timeout:g} s.")

        return self._failing_softly(resume)

    def _poke(self, context: "Context") -> Any:
        def poke() -> Any:
            try:
                return self.poke(context)
            except (SkipTask, FailTask, TaskTimeout):
                raise
            except Exception:
                if not self.silent_fail:
                    raise
                log.warning("A poke failed; the sensor pokes again (silent_fail)", exc_info=True)
                return False

        return self._failing_softly(poke)

    def _failing_softly(self, call: Callable[[], Any]) -> Any:
        """The result of `call`. With soft_fail, FailTask and timeouts become a skip, and with never_fail every error.

        A crash of a poke or a trigger is no answer about the condition, so soft_fail does not hide it: it is retried.
        """
        try:
            return call()
        except SkipTask:
            raise
        except Exception as error:
            is_answer = isinstance(error, FailTask | TaskTimeout)
            if not (self.never_fail or (self.soft_fail and is_answer)):
                raise
            cause = str(error) if is_answer else f"{type(error).__name__}: {error}"
            raise SkipTask(f"The sensor is skipped instead of failing: {cause}") from error

    def _give_up(self, message: str) -> NoReturn:
        if self.soft_fail or self.never_fail:
            raise SkipTask(message)
        raise SensorTimeout(message)


class DeferrableSensor(BaseSensorOperator):
    """Base class of sensors that with `deferrable=True` wait for a trigger without a worker. Subclasses implement `trigger`."""

    declared: ClassVar[type] = DeferrableArguments

    deferrable: bool

    def __init__(self, **kwargs: Unpack[DeferrableArguments]) -> None:
        given: dict[str, Any] = {**kwargs}
        super().__init__(**given)

    def trigger(self, context: "Context") -> BaseTrigger:
        """The trigger that fires when the condition holds."""
        raise NotImplementedError(f"{type(self).__name__} has no trigger().")

    def execute(self, context: "Context") -> object:
        if not self.deferrable:
            return super().execute(context)
        if not self._poke(context):
            left_s = self.timeout - self._waited_s(context["ti"])
            if left_s <= 0:
                self._give_up(f"The condition was not true within {self.timeout:g} s.")
            self.defer(trigger=self.trigger(context), method_name="execute_complete", timeout=timedelta(seconds=left_s))
        return None

    def execute_complete(self, context: Mapping[str, Any], event: Any = None) -> None:
        """Continue after the deferral: the condition holds."""


class PythonSensorArguments(SensorArguments, PythonArguments, total=False):
    """The arguments of PythonSensor except its function."""


class PythonSensor(BaseSensorOperator, PythonOperator):
    """Waits until the function returns a true value, or a PokeReturnValue that is done."""

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Unpack[PythonSensorArguments]) -> None:
        given: dict[str, Any] = {**kwargs, "python_callable": python_callable}
        super().__init__(**given)

    def poke(self, context: "Context") -> Any:
        return self.call(context)


DEFAULT_CONNECTION = "fs_default"


class FileSensor(DeferrableSensor):
    """Waits until `filepath` (a path or glob) matches a file, or a folder with a file somewhere below it.

    A relative path starts at the folder `path` in the extra of the connection `fs_conn_id`; at / if there is no connection
    fs_default. With `recursive`, ** in a glob matches folders at any depth. With `deferrable=True` a waiter checks, on its own
    machine. `start_from_trigger` and `trigger_kwargs` are accepted as in Airflow and have no effect.
    """

    template_fields: Sequence[str] = ("filepath", "fs_conn_id")

    def __init__(
        self,
        *,
        filepath: str | XComArg,
        fs_conn_id: str | XComArg = DEFAULT_CONNECTION,
        recursive: bool = False,
        start_from_trigger: bool = False,
        trigger_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Unpack[DeferrableArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.filepath = self.text_or_result("filepath", filepath)
        self.fs_conn_id = self.text_or_result("fs_conn_id", fs_conn_id)
        self.recursive = checks.boolean("recursive", recursive)

    def poke(self, context: Mapping[str, Any]) -> bool:
        return find_file(self._path(context), recursive=self.recursive) is not None

    def trigger(self, context: Mapping[str, Any]) -> FileTrigger:
        return FileTrigger(self._path(context), recursive=self.recursive, poke_interval=self.poke_interval)

    def _path(self, context: Mapping[str, Any]) -> str:
        path = Path(self.filepath)
        if path.is_absolute():
            return str(path)
        try:
            folder = context["conn"][self.fs_conn_id].extra_dejson.get("path")
        except NotFoundError:
            if self.fs_conn_id != DEFAULT_CONNECTION:
                raise
            folder = None
        return str(Path(folder or "/") / path)


class BashSensor(BaseSensorOperator):
    """Waits until `bash -c bash_command` exits with 0.

    Any other code means "not yet"; with `retry_exit_code`, only that code does, and the others fail the task. `env`
    replaces the environment of the worker. The output is read with the encoding `output_encoding`.
    """

    template_fields: Sequence[str] = ("bash_command", "env")

    def __init__(
        self,
        *,
        bash_command: str | XComArg,
        env: Mapping[str, str] | XComArg | None = None,
        output_encoding: str = "utf-8",
        retry_exit_code: int | None = None,
        **kwargs: Unpack[SensorArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.bash_command = self.text_or_result("bash_command", bash_command)
        self.env: Any = env if env is None or isinstance(env, XComArg) else checks.mapping("env", env)
        self.output_encoding = checks.text("output_encoding", output_encoding)
        self.retry_exit_code = None if retry_exit_code is None else checks.integer("retry_exit_code", retry_exit_code)

    def poke(self, context: Mapping[str, Any]) -> bool:
        own = os.environ if self.env is None else {name: str(value) for name, value in self.env.items()}
        environment = {**own, **context_variables(context)}
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            ended = process.run(["bash", "-c", self.bash_command], env=environment, cwd=folder, encoding=self.output_encoding)
        if ended.exit_code and self.retry_exit_code is not None and ended.exit_code != self.retry_exit_code:
            raise FailTask(f"The bash command failed: {process.describe(ended.exit_code)}.")
        return ended.exit_code == 0
