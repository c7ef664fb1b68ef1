"""Checks the serialized DAGs of parser processes before schedulers and workers read them."""

import functools
import hashlib
import re
from collections import OrderedDict
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError

from paceline.authoring.arguments import ID_MAX_LENGTH, is_reserved_queue
from paceline.authoring.task_arguments import TriggerRule
from scheduler.dagfiles.answers import DagRow, fault
from scheduler.serialized.dag import SerializedDag, next_timetable

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
