"""Tasks that create a run of another DAG, and can wait for its end."""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, ClassVar, Unpack

from paceline.authoring import xcom, zones
from paceline.authoring.operator import Operator
from paceline.authoring.params import DagParam
from paceline.authoring.task_arguments import TaskArguments
from paceline.authoring.triggers import ExternalResult, ExternalTrigger, Target, judge
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import ConflictError, ExternalTaskFailedError, FailTask, SkipTask
from paceline.states import RunState

#: The arguments that are True or False, and may be templates.
_FLAGS = ("wait_for_completion", "skip_when_already_exists")
_TEXTS = {"true": True, "1": True, "false": False, "0": False, "none": False, "": False}


class TriggerDagRunOperator(Operator):
    """Creates a run of `trigger_dag_id`; its run ID is the XCom `trigger_run_id`.

    `logical_date` is a datetime or ISO text, without an offset in the default time zone, and by default now; `conf` a dict of JSON
    values, or JSON text of one. If the run exists already, the task fails, is skipped (`skip_when_already_exists`), or clears it
    (`reset_dag_run`); the run then gets this `conf` if there is one. With `wait_for_completion` it succeeds when that run is in one
    of `allowed_states` (success) and fails when it is in one of `failed_states` (failed); it checks every `poke_interval` (seconds
    or a timedelta), or without occupying a worker with `deferrable=True`. `fail_when_dag_is_paused` fails the task if that DAG is
    paused. `openlineage_inject_parent_info` is accepted as in Airflow and has no effect.

    A retry continues with the run that an earlier try created. If that run has failed, it creates another, or clears that run
    if `trigger_run_id` or `logical_date` allow no other.
    """

    template_fields: Sequence[str] = ("trigger_dag_id", "trigger_run_id", "logical_date", "conf", *_FLAGS)
    refused: ClassVar[Mapping[str, str]] = {
        "run_after": "the run starts as soon as it can; let its first task wait, with DateTimeSensor",
        "note": "the notes of runs are set by the REST API; put the text into conf",
    }

    def __init__(
        self,
        *,
        trigger_dag_id: str | XComArg,
        trigger_run_id: str | XComArg | None = None,
        conf: Mapping[str, Any] | XComArg | str | None = None,
        logical_date: str | datetime | XComArg | None = None,
        reset_dag_run: bool = False,
        wait_for_completion: bool | str | XComArg = False,
        poke_interval: timedelta | float = 60,
        allowed_states: Iterable[str] | None = None,
        failed_states: Iterable[str] | None = None,
        skip_when_already_exists: bool | str | XComArg = False,
        fail_when_dag_is_paused: bool = False,
        deferrable: bool = False,
        openlineage_inject_parent_info: bool = True,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.trigger_dag_id = self.text_or_result("trigger_dag_id", trigger_dag_id)
        self.trigger_run_id: Any = trigger_run_id
        self.conf: Any = conf
        self.logical_date: Any = logical_date.isoformat() if isinstance(logical_date, datetime) else logical_date
        self.reset_dag_run = checks.boolean("reset_dag_run", reset_dag_run)
        self.wait_for_completion = self._flag("wait_for_completion", wait_for_completion)
        self.poke_interval = checks.duration("poke_interval", poke_interval, zero_allowed=True).total_seconds()
        allowed, failed = allowed_states, failed_states
        self.allowed_states = checks.choices("allowed_states", allowed or [RunState.SUCCESS], RunState)
        self.failed_states = checks.choices("failed_states", [RunState.FAILED] if failed is None else failed, RunState)
        self.skip_when_already_exists = self._flag("skip_when_already_exists", skip_when_already_exists)
        self.fail_when_dag_is_paused = checks.boolean("fail_when_dag_is_paused", fail_when_dag_is_paused)
        self.deferrable = checks.boolean("deferrable", deferrable)

    def _flag(self, name: str, value: Any) -> Any:
        """A checked bool. A template or the result of a task stays as it is until it is rendered."""
        is_late = isinstance(value, XComArg | DagParam) or (isinstance(value, str) and "{" in value)
        return value if is_late else self.argument_checks().boolean(name, value)

    def execute(self, context: Mapping[str, Any]) -> object:
        for name in _FLAGS:
            setattr(self, name, _rendered_flag(name, getattr(self, name)))
        # Only a task of its own has at most one run. A function that calls `execute` may trigger several.
        is_task = context["task"] is self
        run_id = self._trigger(context["ti"], (self.failed_states if self.wait_for_completion else ()) if is_task else None)
        context["ti"].xcom_push("trigger_run_id", run_id)
        if not self.wait_for_completion:
            return None
        target = Target(dag_id=self.trigger_dag_id, run_id=run_id)
        if self.deferrable:
            trigger = ExternalTrigger([asdict(target)], allowed_states=self.allowed_states, failed_states=self.failed_states)
            self.defer(trigger=trigger, method_name="execute_complete", kwargs={"run_id": run_id})
        while True:
            answers = context["ti"].states([target])
            verdict = judge(answers, allowed=self.allowed_states, failed=self.failed_states)
            if verdict is not ExternalResult.WAITING:
                self._conclude(verdict, run_id)
                return None
            time.sleep(self.poke_interval)

    def execute_complete(self, context: Mapping[str, Any], event: Any = None, run_id: str = "") -> None:
        """Continue after the deferral: the triggered run has ended."""
        self._conclude(ExternalResult(event["verdict"]), run_id)

    def _trigger(self, ti: Any, adopt_unless: Sequence[str] | None) -> str:
        if self.fail_when_dag_is_paused and ti.is_paused(self.trigger_dag_id):
            raise FailTask(f"DAG {self.trigger_dag_id!r} is paused, and fail_when_dag_is_paused is true.")
        try:
            run_id: str = ti.trigger_run(
                self.trigger_dag_id,
                run_id=self.trigger_run_id,
                logical_date=self._date(),
                conf=self._conf(),
                reset=self.reset_dag_run,
                adopt_unless=adopt_unless,
            )
        except ConflictError as error:
            if self.skip_when_already_exists:
                raise SkipTask(str(error)) from error
            raise
        return run_id

    def _date(self) -> datetime | None:
        if self.logical_date is None:
            return None
        try:
            date = self.logical_date if isinstance(self.logical_date, datetime) else datetime.fromisoformat(str(self.logical_date))
        except ValueError:
            raise FailTask(
                f"logical_date {self.logical_date!r} must be an ISO date or time, such as 2026-01-01T06:00:00+00:00."
            ) from None
        return date if date.utcoffset() is not None else date.replace(tzinfo=zones.load(zones.default_name()))

    def _conf(self) -> dict[str, Any]:
        given = self.conf
        try:
            # A template gives text, unless the DAG renders native objects.
            conf = json.loads(given) if isinstance(given, str) else json.loads(json.dumps({} if given is None else given))
        except (TypeError, ValueError, RecursionError) as error:
            raise FailTask(f"conf must be a dict of JSON values, or JSON text of one, not {given!r}: {error}.") from None
        if not isinstance(conf, dict):
            raise FailTask(f"conf must be a dict, or JSON text of one, not {given!r}.")
        # Its size is checked against core.max_conf_bytes when the run is created.
        xcom.encode(conf, sys.maxsize, name="conf")
        return conf

    def _conclude(self, verdict: ExternalResult, run_id: str) -> None:
        if verdict is ExternalResult.FAILED:
            raise ExternalTaskFailedError(
                f"Run {run_id!r} of DAG {self.trigger_dag_id!r} ended in one of {', '.join(self.failed_states)}."
            )


def _rendered_flag(name: str, value: object) -> bool:
    """The bool that a template or the result of a task gives; Airflow would take the text "False" for True."""
    known = value if isinstance(value, bool) else _TEXTS.get(str(value).strip().lower())
    if known is None:
        raise FailTask(f"{name} must be True or False, not {value!r}.")
    return known
