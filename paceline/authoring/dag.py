"""The DAG of a DAG file: `with DAG(...)` or `@dag`."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, Protocol, Self, TypedDict, Unpack, overload

from paceline.authoring import fields, scope, source, timetable, zones
from paceline.authoring import params as params_
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.arguments import ACCEPTED, REFUSED_FOR_DAGS, REFUSED_FOR_TASKS, Arguments, near
from paceline.authoring.asset import Asset
from paceline.authoring.deadline import DeadlineAlert, alerts
from paceline.authoring.fields import Field, anything, boolean, callbacks, checked, limit, mapping, optional, parameters, text
from paceline.authoring.graph import Graph, Group
from paceline.authoring.task_arguments import CallbackAttribute, Callbacks
from paceline.authoring.timetables.base import Timetable
from paceline.exceptions import DagCycleError, DagError, NotFoundError

TAG_MAX_LENGTH = 100
READ_AT = ("try_start", "run_start")
RUN_TYPES = ("scheduled", "manual", "backfill", "asset_triggered")


def _tags(checks: Arguments, name: str, value: Any) -> list[str]:
    names = checks.texts(name, () if value is None else value)
    for tag in names:
        if not tag.strip() or len(tag) > TAG_MAX_LENGTH:
            raise checks.refuse(f"the tag {tag!r} must have 1 to {TAG_MAX_LENGTH} characters.")
    return names


def _run_types(checks: Arguments, name: str, value: Any) -> tuple[str, ...]:
    return tuple(checks.choices(name, checks.texts(name, value or ()), RUN_TYPES))


def _links(checks: Arguments, name: str, value: Any) -> dict[str, object]:
    links = checks.mapping(name, value or {})
    for owner, link in links.items():
        if not isinstance(link, str) or not link.startswith(("http://", "https://", "mailto:")):
            raise checks.refuse(f"the link of owner {owner!r} must start with https://, http:// or mailto:, not {link!r}.")
    return links


class DagArguments(TypedDict, total=False):
    """The arguments of a DAG except dag_id; None takes a limit from the settings. Those without a Field are checked together."""

    schedule: Any
    start_date: datetime | None
    end_date: datetime | None
    max_active_runs: int | None
    default_args: Mapping[str, Any] | None
    description: Annotated[str | None, Field(None, anything)]
    dag_display_name: Annotated[str | None, Field(None, optional(text))]
    owner_links: Annotated[Mapping[str, str] | None, Field(None, _links)]
    doc_md: Annotated[str | None, Field(None, anything)]
    catchup: Annotated[bool | None, Field(None, optional(boolean))]
    max_active_tasks: Annotated[int | None, Field(None, limit)]
    tags: Annotated[Iterable[str], Field((), _tags)]
    render_template_as_native_obj: Annotated[bool, Field(False, boolean)]
    user_defined_macros: Annotated[Mapping[str, Any] | None, Field(None, mapping)]
    user_defined_filters: Annotated[Mapping[str, Callable[..., Any]] | None, Field(None, mapping)]
    template_searchpath: Annotated[str | Iterable[str] | None, Field(None, fields.one_or_more)]
    template_undefined: Annotated[type | None, Field(None, anything)]
    jinja_environment_kwargs: Annotated[Mapping[str, Any] | None, Field(None, mapping)]
    is_paused_upon_creation: Annotated[bool | None, Field(None, optional(boolean))]
    params: Annotated[Mapping[str, Any] | None, Field(None, fields.params)]
    dagrun_timeout: Annotated[timedelta | None, Field(None, optional(fields.duration()))]
    fail_fast: Annotated[bool, Field(False, boolean)]
    max_consecutive_failed_dag_runs: Annotated[int | None, Field(None, optional(fields.integer(least=0)))]
    on_success_callback: Annotated[Callbacks, Field(None, callbacks)]
    on_failure_callback: Annotated[Callbacks, Field(None, callbacks)]
    sla_miss_callback: Annotated[Callable[..., Any] | None, Field(None, optional(Arguments.function))]
    deadline: Annotated[Any, Field(None, alerts)]
    disable_bundle_versioning: Annotated[bool, Field(False, boolean)]
    rerun_with_latest_version: Annotated[bool | None, Field(None, optional(boolean))]
    allowed_run_types: Annotated[Iterable[str] | None, Field(None, _run_types)]
    read_at: Annotated[str, Field("try_start", fields.choice(READ_AT))]


#: The arguments that take callbacks, by the name of their event.
CALLBACKS = {"dag_success": "on_success_callback", "dag_failure": "on_failure_callback"}


#: The group of the entry point that runs a DAG for DAG.test. Authoring may not import code that runs tasks.
DAG_TEST = "paceline.dag_test"

#: Attributes of Airflow's DAGs that do not exist here, and what to use instead.
_ADVICE = {
    "task": "write @task inside of `with dag:`",
    "cli": "run `paceline dags test`",
    "partial_subset": "use get_task() and the relatives of the task",
    "run": "use test(), or `paceline dags trigger`",
    "clear": "use `paceline runs clear`, or the REST API",
    "create_dagrun": "use TriggerDagRunOperator, or the REST API",
    "get_last_dagrun": "use the REST API",
    "get_active_runs": "use the REST API",
    "subdags": "use TaskGroup",
    "access_control": "roles of `paceline users` apply to all DAGs",
    "add_result": "the result of a run is the XCom of its last task",
}


class DAG(Graph[AbstractOperator]):
    """A pipeline: its tasks in order of definition, its schedule and its limits.

    The arguments have Airflow's names and meaning:

    - `dag_id`: at most 250 letters, digits, dashes, dots and underscores, unique in the DAGs folder.
    - `schedule`: a cron expression, a preset such as "@daily", a timedelta, assets, a timetable, or None for manual runs.
    - `start_date`, `end_date`: datetimes with a time zone, the first and last possible run. `catchup` (False) also
      creates the runs that were missed. `is_paused_upon_creation`: whether a new DAG waits until it is unpaused.
    - `max_active_runs`, `max_active_tasks` (per run): limits, at least 1; None takes the value from the settings.
      `max_consecutive_failed_dag_runs`: pause the DAG after so many failed runs; 0 never does.
    - `dagrun_timeout`: a timedelta or seconds, after which an unfinished run fails. `fail_fast`: the first failure of a task ends
      the run. `deadline`: one DeadlineAlert or a list.
    - `default_args`: arguments for every task of the DAG. `params`: the inputs of a run, see Param.
    - `on_success_callback`, `on_failure_callback`: functions that take the context, one or a list, called when a run ends.
      `sla_miss_callback`: called when tasks miss their `sla`.
    - `user_defined_macros`, `user_defined_filters`, `template_searchpath`, `template_undefined`, `jinja_environment_kwargs`: for
      templates. `render_template_as_native_obj`: a template gives a Python value, not text.
    - `description`, `doc_md`, `tags`, `owner_links`, `dag_display_name`: for people.
    - `allowed_run_types`: such as ["manual", "scheduled"]; others are rejected. `disable_bundle_versioning`: tasks run with the
      newest version of the DAG, not with the one of their run. `rerun_with_latest_version`: so do cleared runs.
    - `read_at`: "try_start", or "run_start": then all tasks read the tables as they were when the run started, with what its own
      tasks have published.

    A wrong argument raises DagError (TimetableError for `schedule`) with the line of the author.
    """

    #: The arguments that it takes in addition to dag_id.
    declared: ClassVar[type] = DagArguments

    on_success_callback = CallbackAttribute("dag_success")
    on_failure_callback = CallbackAttribute("dag_failure")

    # Their checked values:
    description: str | None
    owner_links: dict[str, str]
    doc_md: str | None
    catchup: bool | None
    max_active_tasks: int | None
    tags: list[str]
    is_paused_upon_creation: bool | None
    dagrun_timeout: timedelta | None
    fail_fast: bool
    max_consecutive_failed_dag_runs: int | None
    sla_miss_callback: Callable[..., Any] | None
    deadline: tuple[DeadlineAlert, ...]
    disable_bundle_versioning: bool
    rerun_with_latest_version: bool | None
    allowed_run_types: tuple[str, ...]
    read_at: str
    #: Whether its file speaks Airflow 2, so that a run of its cron or timedelta has the logical date at the start of its interval.
    has_airflow_2_dates: bool = False

    def __init__(self, dag_id: str, **given: Unpack[DagArguments]) -> None:
        self.at = source.here()
        checks = Arguments(f"DAG {dag_id!r}", self.at)
        others = {name: value for name, value in given.items() if name not in DagArguments.__annotations__}
        checks.others(others, known=parameters(DAG), refused=REFUSED_FOR_DAGS)
        self.dag_id = checks.identifier("dag_id", dag_id)
        self.default_args = self._checked_defaults(checks, given.get("default_args"))
        self.start_date, self.end_date = self._checked_dates(checks, given.get("start_date"), given.get("end_date"))
        self.timezone = self._checked_zone(checks)
        self.schedule = given.get("schedule")
        self.timetable: Timetable = timetable.from_schedule(self.schedule, timezone=self.timezone, checks=checks)
        self.max_active_runs = self._checked_max_active_runs(checks, given.get("max_active_runs"))
        values = checked(DagArguments, given, checks)
        self.event_callbacks = {event: values.pop(name) for event, name in CALLBACKS.items()}
        self.dag_display_name: str = values.pop("dag_display_name") or self.dag_id
        vars(self).update(values)
        self.task_dict: dict[str, AbstractOperator] = {}
        self.task_group_dict: dict[str, Group] = {}
        self.edge_labels: dict[tuple[str, str], str] = {}
        self.partials: list[Any] = []
        self.suffixes: dict[str, int] = {}

    @property
    def notify(self) -> tuple[str, ...]:
        """The events of its runs that create a notice, see SerializedDag.notify."""
        return tuple(name for name, functions in self.event_callbacks.items() if functions)

    @property
    def params_spec(self) -> dict[str, Any]:
        """Its params as data, see authoring/params."""
        return params_.spec(self.params)

    def param(self, name: str, default: Any = params_.NOTSET) -> params_.DagParam:
        """A param to pass to tasks; `default` creates it or changes its default. DagError if there is no such param."""
        if default is not params_.NOTSET:
            self.params |= params_.authored({name: default}, Arguments(f"DAG {self.dag_id!r}", self.at))
        elif name not in self.params:
            raise Arguments(f"DAG {self.dag_id!r}", source.here()).refuse(f"there is no param {name!r}{near(name, self.params)}")
        return params_.DagParam(name)

    @property
    def asset_names(self) -> dict[str, str]:
        """{uri: name} of the assets of its schedule and tasks whose name is not their URI."""
        used = [asset for task in self.task_dict.values() for asset in (*task.outlets, *task.inlets)]
        used += self.timetable.condition.assets() if self.timetable.condition is not None else ()
        return {asset.uri: asset.name for asset in used if isinstance(asset, Asset) and asset.name != asset.uri}

    @property
    def line(self) -> int:
        """The line of `fileloc` that defines this DAG."""
        return self.at.line

    @property
    def tasks(self) -> list[AbstractOperator]:
        """The tasks in order of definition."""
        return list(self.task_dict.values())

    @property
    def task_ids(self) -> list[str]:
        """The IDs of the tasks in order of definition."""
        return list(self.task_dict)

    def get_task(self, task_id: str) -> AbstractOperator:
        """The task with that ID; NotFoundError suggests the nearest ID."""
        if task_id not in self.task_dict:
            raise NotFoundError(f"DAG {self.dag_id!r} has no task {task_id!r}{near(task_id, self.task_dict)}")
        return self.task_dict[task_id]

    def test(self, logical_date: datetime | None = None, run_conf: Mapping[str, Any] | None = None) -> Any:
        """Run the DAG in this process, without servers, and print the state of each task: for `if __name__ == "__main__"`.

        Returns a paceline.testing.results.RunResult. Each task gets one try.
        """
        for point in entry_points(group=DAG_TEST):
            return point.load()(self, logical_date=logical_date, conf=run_conf)
        raise NotFoundError(
            f"No installed package has an entry point {DAG_TEST!r}, which dag.test() calls: install Paceline again."
        )

    @property
    def folder(self) -> str:
        """The folder of the DAG file."""
        return str(Path(self.fileloc).parent)

    @property
    def owner(self) -> str:
        """The owners of its tasks, separated by commas."""
        return ", ".join(sorted({task.owner for task in self.task_dict.values()}))

    @property
    def teardowns(self) -> list[AbstractOperator]:
        """Its teardown tasks."""
        return [task for task in self.task_dict.values() if task.is_teardown]

    if not TYPE_CHECKING:  # type checkers find that it does not exist

        def __getattr__(self, name: str) -> NoReturn:
            advice = f": {_ADVICE[name]}" if name in _ADVICE else ""
            raise AttributeError(f"A DAG has no attribute {name!r}{advice}.")

    def validate(self) -> None:
        """Run the checks that need the whole DAG: unfinished partials, cycles, params without a default, default_args."""
        for partial in self.partials:
            partial.validate()
        for task in self.task_dict.values():
            task.link_results()
        if cycle := self._cycle():
            raise source.fault(
                f"DAG {self.dag_id!r} has a cycle: {' -> '.join(cycle)}; remove one of these edges.",
                kind=DagCycleError,
                at=self.task_dict[cycle[0]].at,
            )
        lacking = params_.required(self.params_spec) if self.schedule is not None else []
        if lacking:
            raise Arguments(f"DAG {self.dag_id!r}", self.at).refuse(
                f"param {lacking[0]!r} has no default that fits its schema, so a scheduled run has no value for it; "
                "write a default, or schedule=None."
            )
        known = {name for task in self.task_dict.values() for name in parameters(task.operator_class)}
        known |= {*parameters(AbstractOperator), *REFUSED_FOR_TASKS}
        for name in self.default_args.keys() - known:
            # Without a near match it may be for an operator that this DAG does not use. Unchanged files for Airflow, which ignores
            # such names, load as they are.
            if (hint := near(name, known)) != "." and not ACCEPTED:
                raise Arguments(f"DAG {self.dag_id!r}", self.at).refuse(f"unknown argument {name!r} in default_args{hint}")

    def _cycle(self) -> list[str]:
        """The path of one cycle, with its first ID again at the end; empty if there is none. Equal DAGs give equal paths."""
        sorter = TopologicalSorter(dict.fromkeys(self.task_dict, ()))
        for task_id, task in self.task_dict.items():
            for below in sorted(task.downstream_task_ids):
                sorter.add(below, task_id)
        try:
            sorter.prepare()
        except CycleError as error:
            path: list[str] = error.args[1]
            return path
        return []

    def __enter__(self) -> Self:
        scope.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        scope.leave()
        # The loader of a DAG file validates its DAGs at the end.
        if kind is None and not scope.is_deferring():
            self.validate()

    def __repr__(self) -> str:
        return f"<DAG {self.dag_id}>"

    @staticmethod
    def _checked_defaults(checks: Arguments, default_args: object) -> dict[str, Any]:
        defaults = {} if default_args is None else checks.mapping("default_args", default_args)
        later = {name: defaults.pop(name) for name in REFUSED_FOR_TASKS if name in defaults}
        checks.others(later, known=(), refused=REFUSED_FOR_TASKS)
        return defaults

    def _checked_dates(self, checks: Arguments, start: object, end: object) -> tuple[datetime | None, datetime | None]:
        start = self.default_args.get("start_date") if start is None else start
        end = self.default_args.get("end_date") if end is None else end
        first = None if start is None else checks.moment("start_date", start)
        last = None if end is None else checks.moment("end_date", end)
        if first and last and last < first:
            raise checks.refuse(f"end_date {last} is before start_date {first}.")
        return first, last

    def _checked_zone(self, checks: Arguments) -> str:
        if self.start_date is None:
            return zones.default_name()
        name = zones.name_of(self.start_date)
        if name is None:
            zone = self.start_date.tzinfo
            raise checks.refuse(f"the time zone {zone!r} of start_date has no IANA name; use ZoneInfo('Europe/Berlin').")
        return name

    def _checked_max_active_runs(self, checks: Arguments, value: object) -> int | None:
        if not self.timetable.is_continuous:
            return checks.limit("max_active_runs", value)
        if value not in {None, 1}:
            raise checks.refuse(f"max_active_runs must be 1 with schedule='@continuous', not {value!r}.")
        return 1


class DagDecoratorArguments(DagArguments, total=False):
    """The arguments of @dag."""

    dag_id: str


class DagDecorator(Protocol):
    """A decorator that makes a function create DAGs."""

    def __call__(self, function: Callable[..., Any], /) -> Callable[..., DAG]: ...


@overload
def dag(function: Callable[..., Any], /) -> Callable[..., DAG]: ...
@overload
def dag(dag_id: str | None = None, /, **arguments: Unpack[DagDecoratorArguments]) -> DagDecorator: ...
def dag(dag_id: Any = None, /, **arguments: Any) -> Any:
    """Decorate the function that defines a DAG; each call creates the DAG.

    Takes the arguments of DAG; dag_id defaults to the name of the function, doc_md to its docstring. The function's own
    arguments become params of the DAG.
    """
    if callable(dag_id):
        return _factory(dag_id, dag_id.__name__, {})
    dag_id = arguments.pop("dag_id", dag_id)
    return lambda function: _factory(function, dag_id or function.__name__, arguments)


def _factory(function: Callable[..., Any], dag_id: str, arguments: Mapping[str, Any]) -> Callable[..., DAG]:
    scope.note_function(function, called=False)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> DAG:
        scope.note_function(function, called=True)
        code = inspect.unwrap(function).__code__
        at = source.Location(code.co_filename, code.co_firstlineno)
        try:
            given = inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            raise source.fault(
                f"DAG {dag_id!r}: {error}; give it a default, or pass a value where the DAG function is called.", at=at
            ) from None
        given.apply_defaults()
        try:
            new = DAG(dag_id, **{"doc_md": function.__doc__, **arguments})
            new.at = at
            values = {name: new.param(name, value) for name, value in given.arguments.items()}
        except DagError as error:
            error.file, error.line = at.file, at.line
            raise
        with new:
            function(**values)
        return new

    return make
