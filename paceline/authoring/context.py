"""The task context: the names that templates, `execute(context)` and parameters of @task functions can use."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, overload

from paceline.authoring import macros as macros  # noqa: PLC0414 - DAG files import it
from paceline.authoring import params, running, task_instance
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.arguments import ACCEPTED
from paceline.authoring.asset import NO_EVENTS, AssetEvents, AssetRef, EventReads, OutletEvents
from paceline.authoring.connection import Connection, ConnectionBackend, Connections
from paceline.authoring.graph import Graph
from paceline.authoring.state_store import AssetStateStores, NoStates, StateBackend, TaskStateStore
from paceline.authoring.task_instance import DagRun, TaskInstance
from paceline.authoring.templates import DATE_FORMATS
from paceline.authoring.variable import VariableBackend, Variables
from paceline.exceptions import PacelineError

if TYPE_CHECKING:
    from pendulum import DateTime


__all__ = ["Context", "DagRun", "SecretsBackend", "TaskInstance", "build", "dates", "in_utc"]

Context = running.Context

#: The logical date in its usual formats; absent for a run without a logical date.
DATE_KEYS = ("logical_date", *DATE_FORMATS, "ts_nodash_with_tz")
#: Of the DAG's last successful run before this one; None if there is none.
PREVIOUS_KEYS = (
    "prev_data_interval_start_success",
    "prev_data_interval_end_success",
    "prev_start_date_success",
    "prev_end_date_success",
)
#: The keys that a task of any operator can rely on.
KEYS = frozenset(task_instance.Context.__annotations__) - {"exception", "reason", "sc", "spark", "start_date"}


class SecretsBackend(VariableBackend, ConnectionBackend, Protocol):
    """The variables and connections that a worker serves to its tasks; None for a missing one."""


class NoBackend:
    """The backend of a context without secrets: every access is a PacelineError."""

    def variable(self, key: str) -> str | None:
        raise PacelineError(f"Variable {key!r}: variables cannot be read here.")

    def set_variable(self, key: str, value: str, description: str | None) -> None:
        raise PacelineError(f"Variable {key!r}: variables cannot be set here.")

    def delete_variable(self, key: str) -> bool:
        raise PacelineError(f"Variable {key!r}: variables cannot be deleted here.")

    def connection(self, conn_id: str) -> Connection | None:
        raise PacelineError(f"Connection {conn_id!r}: connections cannot be read here.")


def build(
    *,
    dag: Graph[Any],
    task: AbstractOperator,
    ti: TaskInstance,
    dag_run: DagRun,
    previous: Mapping[str, Any] | None = None,
    backend: SecretsBackend | None = None,
    conf_overrides_params: bool = True,
    events: EventReads = NO_EVENTS,
    states: StateBackend | None = None,
) -> Context:
    """The context of one try, without the keys that only the worker can add, such as `spark`.

    `previous` holds the values of PREVIOUS_KEYS. ParamError if the conf of the run does not fit the params of the task.
    """
    backend, states = backend or NoBackend(), states or NoStates()
    known = dict(dates(dag_run.logical_date))
    inlets = [events.named(inlet.name) if isinstance(inlet, AssetRef) else inlet for inlet in task.inlets]
    try_params = params.Params()
    if dag.params or task.params or dag_run.conf:
        try_params = params.of_try(dag, task, dag_run.conf, conf_overrides=conf_overrides_params)
    built: Context = {
        **known,
        **(previous or dict.fromkeys(PREVIOUS_KEYS)),
        "var": Variables(backend),
        "conn": Connections(backend),
        "dag": dag,
        "task": task,
        "ti": ti,
        "task_instance": ti,
        "task_instance_key_str": f"{dag_run.dag_id}__{ti.task_id}__{known.get('ds_nodash', dag_run.run_id)}",
        "dag_run": dag_run,
        "run_id": dag_run.run_id,
        "conf": dag_run.conf,
        "params": try_params,
        "data_interval_start": in_utc(dag_run.data_interval_start),
        "data_interval_end": in_utc(dag_run.data_interval_end),
        "partition_key": dag_run.partition_key,
        "partition_date": in_utc(dag_run.partition_date),
        "map_index": ti.map_index,
        "loop": None,
        "map_index_template": task.map_index_template,
        "expanded_ti_count": None,
        "inlets": inlets,
        "outlets": list(task.outlets),
        "outlet_events": OutletEvents(task.outlets),
        "inlet_events": AssetEvents(lambda: events.of_assets([asset.uri for asset in inlets]), inlets),
        "triggering_asset_events": AssetEvents(events.of_run),
        "task_state_store": TaskStateStore(states),
        "asset_state_store": AssetStateStores(states, [*inlets, *task.outlets]),
        "start_date": in_utc(ti.start_date),
        "test_mode": False,
        "macros": macros,
    }
    # With the import hook for unchanged Airflow files.
    return built | old_dates(built) if ACCEPTED else built


@lru_cache(maxsize=64)  # the tasks of a run share their date
def dates(logical_date: datetime | None) -> Mapping[str, Any]:
    """The values of DATE_KEYS, in UTC as in Airflow."""
    if logical_date is None:
        return {}
    moment = in_utc(logical_date)
    formats = {name: formatted(moment) for name, formatted in DATE_FORMATS.items()}
    return {"logical_date": moment, **formats, "ts_nodash_with_tz": formats["ts"].replace("-", "").replace(":", "")}


@overload
def in_utc(moment: datetime) -> "DateTime": ...
@overload
def in_utc(moment: None) -> None: ...
def in_utc(moment: datetime | None) -> "DateTime | None":
    """A moment as the context and templates have it: a datetime of pendulum, in UTC. None stays None."""
    if moment is None:
        return None
    kind, utc = _pendulum()
    m = moment.astimezone(UTC)
    converted: DateTime = kind(m.year, m.month, m.day, m.hour, m.minute, m.second, m.microsecond, tzinfo=utc)
    return converted


@cache
def _pendulum() -> tuple[Any, tzinfo]:
    """Loaded at the first use of a date: importing it takes longer than the whole module `paceline`."""
    import pendulum

    return pendulum.DateTime, pendulum.UTC


#: Each is the day of a moment, with dashes and without.
_OLD_DAYS = ("prev_ds", "next_ds", "yesterday_ds", "tomorrow_ds")
OLD_DATES = (
    "execution_date", "prev_execution_date", "next_execution_date", "prev_execution_date_success",
    *_OLD_DAYS, *(f"{name}_nodash" for name in _OLD_DAYS),
)  # fmt: skip


def old_dates(context: Mapping[str, Any]) -> dict[str, Any]:
    """The values of NAMES; empty for a run without a logical date.

    The previous and next dates belong to the neighboring data intervals. For a run by hand, both are its own date, as in Airflow.
    """
    date = context.get("logical_date")
    if date is None:
        return {}
    start, end = context["data_interval_start"], context["data_interval_end"]
    is_scheduled = context["dag_run"].run_type != "manual" and start is not None and end is not None
    before, after = (date - (end - start), date + (end - start)) if is_scheduled else (date, date)
    day = timedelta(days=1)
    moments = dict(zip(_OLD_DAYS, (before, after, date - day, date + day), strict=True))
    return {
        "execution_date": date,
        "prev_execution_date": before,
        "next_execution_date": after,
        "prev_execution_date_success": context["prev_data_interval_start_success"],
        **{name: moment.strftime("%Y-%m-%d") for name, moment in moments.items()},
        **{f"{name}_nodash": moment.strftime("%Y%m%d") for name, moment in moments.items()},
    }
