"""The answers of the processes that run user code, and the serialized DAGs in them. They are not trusted.

An invalid answer becomes an import error of the file, or a failure of the callback. DAGs are checked before schedulers and workers
read them.
"""

import functools
import hashlib
import json
import re
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from paceline.authoring.arguments import ID_MAX_LENGTH, is_reserved_queue
from paceline.authoring.task_arguments import TriggerRule
from scheduler.serialized.dag import SerializedDag, next_timetable
from scheduler.store.dags.import_errors import Message, Problem, Storable, Strict

#: Maximum size of a child's result.
MAX_RESULT_BYTES = 64 << 20
#: Maximum length of the line in which the fork server passes a result on: the same JSON with the name of the file.
MAX_LINE_BYTES = MAX_RESULT_BYTES + (1 << 20)
#: Maximum size of the answer for a callback, and of the request for it, which contains the conf of its run.
MAX_CALL_ANSWER_BYTES = 256 << 10
MAX_CALL_REQUEST_BYTES = 64 << 20
MAX_CALLBACKS = 100
MAX_MODULES = 10_000
MAX_PATH_CHARACTERS = 4096


Path = Annotated[Storable, Field(max_length=MAX_PATH_CHARACTERS)]


class DagRow(Strict):
    """A DAG to store: its canonical JSON and its hash."""

    dag_id: Annotated[Storable, Field(min_length=1, max_length=250)]
    content_hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    data: str
    is_paused_upon_creation: bool | None


class TaskDetails(Strict):
    """What a task executes, see task_details."""

    arguments: dict[Storable, Storable]
    code: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Reading(Strict):
    """The result of parsing a file: its DAGs, or a problem.

    `modules` are the imported modules of the DAGs folder, as relative paths. `settled` means that the DAGs depend only on code.
    `tasks` are by DAG and task ID, if they were asked for.
    """

    dags: tuple[DagRow, ...] = ()
    problem: Problem | None = None
    tasks: dict[str, dict[str, TaskDetails]] = {}
    modules: Annotated[tuple[Path, ...], Field(max_length=MAX_MODULES)] = ()
    settled: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.problem is not None and self.dags:
            raise ValueError("it has both DAGs and a problem")
        if len({row.dag_id for row in self.dags}) < len(self.dags):
            raise ValueError("it has a DAG id twice")
        return self


class Answer(Reading):
    """The result of parsing a file, as the fork server passes it on."""

    file: Path
    duration_s: Annotated[float, Field(ge=0)]

    def details_of(self, dag_id: str) -> str:
        """The details of the tasks of a DAG, as JSON."""
        return json.dumps({task_id: one.model_dump() for task_id, one in self.tasks.get(dag_id, {}).items()})


class Opened(Strict):
    """The result of loading a DAG file for its callbacks."""

    problem: Message | None


class Called(Strict):
    """The result of a callback: its error, and the number of callbacks of the event."""

    count: Annotated[int, Field(ge=0, le=MAX_CALLBACKS)]
    error: Message | None


class Wanted(Strict):
    """What a callback reads while it runs: a variable, a connection, or the XComs of a task. The next request has the value."""

    wanted: Literal["variable", "connection", "xcoms"]
    #: The key of the variable, or the ID of the connection or of the task.
    name: Annotated[Storable, Field(max_length=MAX_PATH_CHARACTERS)]
    dag_id: Storable = ""
    run_id: Storable = ""
    key: Storable = ""
    map_index: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    prior: bool = False


class Ended(Strict):
    """The child has ended. `ended` is its exit code, negative for a signal."""

    ended: Annotated[int, Field(ge=-64, le=255)]
    #: The violation of the protocol for which the child was killed, if any.
    fault: Message | None = None


#: All answers of the callback process. The caller checks that it gets the expected one.
CALLBACK_ANSWER: TypeAdapter[Opened | Called | Ended | Wanted] = TypeAdapter(Opened | Called | Ended | Wanted)


def fault(error: ValidationError) -> str:
    """Describe why an answer is invalid, without its content but with the start of a key that it should not have."""
    first: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"][:6])
    # The key comes from the answer too: with a NUL character it could not be passed on.
    where = "".join(character if character.isprintable() else "?" for character in where)
    return f"{where}: {first['msg'][:200]}" if where else first["msg"][:200]


#: Maximum number of remembered valid contents.
MAX_KNOWN = 10_000
LARGEST_INT = 2**31 - 1
#: Seconds of 100 years: PostgreSQL adds durations to times, which must stay in its calendar.
LONGEST_S = 100 * 365.25 * 86_400
ID = re.compile(r"[\w.-]{1,250}")
#: The time for which the next run of a schedule is computed. Any time would do.
SOME_TIME = datetime(2025, 1, 1, tzinfo=UTC)
RULES = frozenset(str(rule) for rule in TriggerRule)


class MalformedDagError(ValueError):
    """A serialized DAG is invalid. Paceline's own code never produces such a DAG."""


class DagCheck:
    """Checks each content once, because parsing a file again usually yields the same content."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def check(self, row: DagRow, file: str) -> None:
        """Raise MalformedDagError unless this is a DAG of `file` that can be stored, planned and run."""
        if hashlib.sha256(row.data.encode()).hexdigest() != row.content_hash:
            raise MalformedDagError("its hash does not match its content")
        # The content includes the file and the DAG ID, so its hash identifies both.
        key = (file, row.content_hash)
        if key not in self._known:
            _check(row, file)
            if len(self._known) >= MAX_KNOWN:
                self._known.popitem(last=False)
            self._known[key] = None
        self._known.move_to_end(key)


@functools.cache
def _adapter() -> TypeAdapter[SerializedDag]:
    return TypeAdapter(SerializedDag)


def _check(row: DagRow, file: str) -> None:
    try:
        dag = _adapter().validate_json(row.data, strict=True)
    except ValidationError as error:
        raise MalformedDagError(fault(error)) from None
    if (dag.dag_id, dag.file, dag.is_paused_upon_creation) != (row.dag_id, file, row.is_paused_upon_creation):
        raise MalformedDagError("its content belongs to another DAG or file")
    if not ID.fullmatch(dag.dag_id):
        raise MalformedDagError("it has an invalid id")
    _check_tasks(dag)
    durations = [
        dag.dagrun_timeout_s,
        *(duration for task in dag.tasks for duration in (task.retry_delay_s, task.sla_s)),
        *(deadline.get("interval_s") for deadline in dag.deadlines),
    ]
    if not all(duration is None or (isinstance(duration, int | float) and abs(duration) <= LONGEST_S) for duration in durations):
        raise MalformedDagError("a duration is longer than 100 years")
    try:
        table = next_timetable(dag)
        table.next_run(last=None, start=dag.start, end=dag.end, catchup=dag.catchup, now=SOME_TIME)
        moments = [
            dag.start,
            dag.end,
            *(datetime.fromisoformat(date) for task in dag.tasks for date in (task.start_date, task.end_date) if date),
        ]
    except Exception as error:
        raise MalformedDagError(f"its schedule or one of its dates is invalid: {type(error).__name__}") from None
    if any(moment is not None and moment.tzinfo is None for moment in moments):
        raise MalformedDagError("a date has no time zone")


def _check_tasks(dag: SerializedDag) -> None:
    """Check that each task comes after its upstream tasks, so that there is no cycle, and names only tasks of this DAG."""
    ids = {task.task_id for task in dag.tasks}
    if len(ids) < len(dag.tasks):
        raise MalformedDagError("two tasks have the same id")
    before: set[str] = set()
    for task in dag.tasks:
        if not ID.fullmatch(task.task_id):
            raise MalformedDagError("a task has an invalid id")
        if not before.issuperset(task.upstream) or not ids.issuperset((*task.setups, *task.scope)):
            raise MalformedDagError("a task names an unknown task, or one that does not come before it")
        if task.trigger_rule not in RULES:
            raise MalformedDagError("a task has an unknown trigger rule")
        if len(task.pool) > ID_MAX_LENGTH:
            raise MalformedDagError("a task has a pool with a name that is too long")
        if task.queue is not None and is_reserved_queue(task.queue):
            raise MalformedDagError("a task has a queue with a reserved name")
        numbers = (task.pool_slots, task.retries, task.max_active_tis_per_dag or 0, task.max_active_tis_per_dagrun or 0)
        if not all(0 <= number <= LARGEST_INT for number in numbers) or abs(task.priority_weight) > LARGEST_INT:
            raise MalformedDagError("a number is out of range")
        before.add(task.task_id)
