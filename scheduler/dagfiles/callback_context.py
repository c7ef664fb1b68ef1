"""The callbacks of an event: the functions in the DAG file, and the context that they receive."""

import asyncio
import builtins
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn, cast

from paceline import exceptions
from paceline.authoring import context, params, running, xcom
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.connection import Connection, Connections
from paceline.authoring.dag import DAG
from paceline.authoring.deadline import SyncCallback
from paceline.authoring.variable import OfEnvironment, Variables
from paceline.exceptions import NotFoundError, PacelineError, ParamError
from scheduler.dagfiles.answers import Wanted

MOMENTS = ("logical_date", "data_interval_start", "data_interval_end", "start_date", "end_date", "run_after", "partition_date")


@dataclass(frozen=True, slots=True)
class Function:
    """One callback, ready to be called."""

    name: str
    call: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaMiss:
    """A missed SLA, as an sla_miss_callback receives it in `slas`."""

    dag_id: str
    task_id: str
    logical_date: datetime | None
    timestamp: datetime

    @property
    def execution_date(self) -> datetime | None:
        """The logical date, under its old name in Airflow."""
        return self.logical_date


@dataclass(frozen=True, slots=True)
class Reads:
    """What callbacks read: variables, connections and XComs. The scheduler reads them, since this process has no database."""

    ask: Callable[[Wanted], Mapping[str, Any]]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def variable(self, key: str) -> str | None:
        here = OfEnvironment(running.environment).variable(key)
        return self._value(Wanted(wanted="variable", name=key)) if here is None else here

    def connection(self, conn_id: str) -> Connection | None:
        values = self._value(Wanted(wanted="connection", name=conn_id))
        return None if values is None else Connection(conn_id=conn_id, **values)

    def xcoms(self, task_id: str, **where: Any) -> list[tuple[int, Any]]:
        """The values that a task pushed, each with its map index."""
        found = self._value(Wanted(wanted="xcoms", name=task_id, **where))
        return [(index, xcom.decode(text)) for index, text in found]

    def set_variable(self, *_: object) -> NoReturn:
        raise PacelineError("A callback only reads variables: change them in a task, or by the REST API.")

    delete_variable = set_variable

    def _value(self, wanted: Wanted) -> Any:
        # Threads of user code may read at the same time.
        with self.lock:
            answer = self.ask(wanted)
        if answer.get("error") is not None:
            raise PacelineError(answer["error"])
        return answer["value"]


class ReadOnlyTaskInstance:
    """The task instance that callbacks receive as `ti`. It reads XComs and pushes none."""

    def __init__(self, dag_id: str, run_id: str, known: Mapping[str, Any], task: AbstractOperator | None, log_url: str) -> None:
        self.dag_id, self.run_id = dag_id, run_id
        self.task_id: str = known["task_id"]
        self.map_index: int = known["map_index"]
        self.try_number: int = known["try_number"]
        self.max_tries: int = known["max_tries"]
        self.state: str | None = known["state"]
        self.start_date, self.end_date = _moment(known.get("start_date")), _moment(known.get("end_date"))
        self.hostname: str = known.get("worker") or ""
        self.task, self.log_url = task, log_url
        self.operator = type(task).__name__ if task is not None else None

    @property
    def duration(self) -> float | None:
        """Duration of the try in seconds, if it has ended."""
        if self.start_date is None or self.end_date is None:
            return None
        return (self.end_date - self.start_date).total_seconds()

    def xcom_pull(
        self,
        task_ids: str | Iterable[str] | None = None,
        dag_id: str | None = None,
        key: str = "return_value",
        include_prior_dates: bool = False,
        *,
        map_indexes: int | Iterable[int] | None = None,
        default: Any = None,
        run_id: str | None = None,
    ) -> Any:
        """The value that a task pushed under `key`, as `xcom_pull` of a running task returns it."""
        indexes = None if map_indexes is None or isinstance(map_indexes, int) else list(map_indexes)

        def values(task_id: str) -> tuple[list[Any], bool]:
            """The values of one task, and whether they are many."""
            index = map_indexes if isinstance(map_indexes, int) else self.map_index if task_ids is None else None
            backend = running.secrets_backend("xcom_pull()")
            where = {"dag_id": dag_id or self.dag_id, "run_id": run_id or self.run_id, "prior": include_prior_dates}
            found = backend.xcoms(task_id, key=key, map_index=None if indexes is not None else index, **where)
            if indexes is not None:
                return [dict(found).get(each, default) for each in indexes], True
            return [value for _, value in found] or [default], index is None and any(at >= 0 for at, _ in found)

        if task_ids is None or isinstance(task_ids, str):
            found, is_many = values(self.task_id if task_ids is None else task_ids)
            return found if is_many else found[0]
        return [value for task_id in task_ids for value in values(task_id)[0]]

    def xcom_push(self, *_: Any, **__: Any) -> NoReturn:
        raise PacelineError("xcom_push works only while a task runs: a callback reads XComs and pushes none.")

    def __repr__(self) -> str:
        return f"<TaskInstance {self.dag_id}.{self.task_id} {self.run_id} try {self.try_number} [{self.state}]>"


def functions(dags: Mapping[str, DAG], call: Mapping[str, Any]) -> list[Function]:
    """Return the callbacks of the event in `call`, in the order of the DAG file. NotFoundError if it no longer has any."""
    dag = dags.get(call["dag_id"])
    if dag is None:
        raise NotFoundError(f"DAG {call['dag_id']} is no longer in its file, so its {call['kind']} callback is not called.")
    kind = call["kind"]
    calls: list[Callable[[], object]]
    if kind == "sla_miss":
        callbacks: list[Any] = [dag.sla_miss_callback] if dag.sla_miss_callback else []
        calls = [partial(callback, *_sla_arguments(dag, call)) for callback in callbacks]
    elif kind == "deadline":
        callbacks = [alert.callback for alert in dag.deadline][call["data"]["number"] :][:1]
        calls = [_with_context(callback, _context(dag, call)) for callback in callbacks]
    else:
        owner = dag if kind.startswith("dag_") else dag.task_dict.get(call["ti"]["task_id"])
        callbacks = list(owner.event_callbacks[kind]) if owner is not None else []
        calls = [_with_context(callback, _context(dag, call)) for callback in callbacks]
    if not callbacks:
        raise NotFoundError(f"{call['about']} has no {kind} callback any more: the DAG file has changed since.")
    return [Function(_name(callback), partial(_finish, ready)) for callback, ready in zip(callbacks, calls, strict=True)]


def _context(dag: DAG, call: Mapping[str, Any]) -> context.Context:
    known = {name: _moment(value) if name in MOMENTS else value for name, value in call["run"].items()}
    names = {"dag_id": call["dag_id"], "run_id": call["run_id"]}
    run = context.DagRun(**names | {name: value for name, value in known.items() if name in context.DagRun.__slots__})
    task = dag.task_dict.get(call["ti"]["task_id"]) if call["ti"] else None
    ti = ReadOnlyTaskInstance(call["dag_id"], call["run_id"], call["ti"], task, call["log_url"]) if call["ti"] else None
    values = _of_run(dag, run, ti, conf_overrides=call["conf_overrides"])
    if task is not None and ti is not None:
        # If the conf does not fit the params of the task, the task failed for that reason. Its callback must still be called.
        with suppress(ParamError):
            values = context.build(dag=dag, task=task, ti=cast(Any, ti), dag_run=run, conf_overrides_params=call["conf_overrides"])
    if call["kind"] == "deadline":
        due = _moment(call["data"]["due_at"])
        values["deadline"] = SimpleNamespace(deadline_time=due, name=dag.deadline[call["data"]["number"]].name)
    if running.is_served():
        backend = running.secrets_backend("A callback")
        values |= {"var": Variables(backend), "conn": Connections(backend)}
    return values | {
        "reason": call["reason"],
        "exception": exception_of(call["reason"]) if call["kind"] in ("on_failure", "on_retry") else None,
        "is_rerun": call["is_rerun"],
        "attempt": call["attempt"],
    }


def exception_of(reason: str | None) -> BaseException | None:
    """An exception of the kind and with the text of the one that failed a try, which ended with its process.

    The kind is one of Python or of Paceline; for another, and for a cause without an exception, it is PacelineError.
    """
    if reason is None:
        return None
    name, _, message = reason.partition(": ")
    kind = getattr(builtins, name, None) or getattr(exceptions, name, None)
    error: BaseException = PacelineError(reason)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(Exception):
            made = kind(message)
            error = made if str(made) == message else error
    return error


def _of_run(dag: DAG, run: context.DagRun, ti: ReadOnlyTaskInstance | None, *, conf_overrides: bool) -> context.Context:
    """Return the part of the context that needs no task."""
    return {
        **context.dates(run.logical_date),
        "dag": dag,
        "dag_run": run,
        "run_id": run.run_id,
        "conf": run.conf,
        "params": params.of_run(dag.params, run.conf, conf_overrides=conf_overrides),
        "data_interval_start": run.data_interval_start,
        "data_interval_end": run.data_interval_end,
        "partition_key": run.partition_key,
        "partition_date": run.partition_date,
        "ti": ti,
        "task_instance": ti,
    }


def _sla_arguments(dag: DAG, call: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return (dag, task_list, blocking_task_list, slas, blocking_tis), as in Airflow 2."""
    date = _moment(call["run"]["logical_date"])
    miss = SlaMiss(dag_id=dag.dag_id, task_id=call["data"]["task_id"], logical_date=date, timestamp=_moment(call["at"]))  # type: ignore[arg-type]
    blocking = [
        ReadOnlyTaskInstance(dag.dag_id, call["run_id"], known, dag.task_dict.get(known["task_id"]), call["log_url"])
        for known in call["blocking"]
    ]
    on = f" on {date.isoformat()}" if date else ""
    listed = "\n".join(f"{ti.task_id}{on}" for ti in blocking)
    return dag, f"{miss.task_id}{on}", listed, [miss], blocking


def _with_context(function: Any, values: context.Context) -> Callable[[], object]:
    if isinstance(function, SyncCallback):
        return partial(function.callback_callable, **function.kwargs, context=values)
    return partial(function, values)


def _finish(call: Callable[[], object]) -> None:
    result = call()
    if inspect.isawaitable(result):
        asyncio.run(_wait(result))


async def _wait(result: Any) -> object:
    return await result


def _name(function: Any) -> str:
    if isinstance(function, SyncCallback):
        function = function.callback_callable
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
