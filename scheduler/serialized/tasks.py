"""A task as data, and the traits of its runtime."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Self

#: Stored even if they are defaults, because statements and the previous version read them from the stored task.
ALWAYS_STORED = frozenset(
    {"upstream", "trigger_rule", "retries", "retry_delay_s", "queue", "pool", "pool_slots", "priority_weight"}
)


class Stored:
    """A dataclass that is stored as JSON. It omits the fields that have their default, except those in `always_stored`."""

    always_stored: ClassVar[frozenset[str]]

    def as_stored(self) -> dict[str, Any]:
        """The fields to store. Unlike `asdict` it copies nothing; copying took a quarter of the time of a small DAG file."""
        kind: type = type(self)
        always = self.always_stored
        return {name: value for name, default in _defaults(kind) if (value := getattr(self, name)) != default or name in always}


@dataclass(frozen=True, kw_only=True)
class SerializedTask(Stored):
    """One task with all settings applied; durations are in seconds.

    A stored task omits what is the default here, so a default must never change. With all fields, ten thousand tasks had 8 MB. Add
    a field only with a default: then no hash of a DAG changes.
    """

    always_stored = ALWAYS_STORED

    task_id: str
    operator: str
    runtime: str
    upstream: tuple[str, ...] = ()
    trigger_rule: str = "all_success"
    retries: int = 0
    retry_delay_s: float = 300.0
    retry_exponential_backoff: float = 0.0
    max_retry_delay_s: float = 86400.0
    execution_timeout_s: float | None = None
    #: Whether it runs only while its worker has a lease, see docs/explanation/exclusive-tasks.md.
    exclusive: bool = False
    #: For people.
    owner: str = "airflow"
    doc_md: str | None = None
    queue: str | None = None
    pool: str = "default_pool"
    #: The connection of the Spark cluster to which it submits. If there is a pool with this name, that is its pool.
    cluster: str | None = None
    pool_slots: int = 1
    #: The effective weight: its own plus the weights of the tasks that its weight_rule counts.
    priority_weight: int = 1
    #: The innermost task group, for people.
    group: str | None = None
    is_setup: bool = False
    is_teardown: bool = False
    on_failure_fail_dagrun: bool = False
    #: The setups whose scope it is in, direct or indirect. Each must have succeeded, unless its trigger rule is `always`.
    setups: tuple[str, ...] = ()
    #: For a teardown: the tasks between its setups and itself, which must have ended.
    scope: tuple[str, ...] = ()
    #: How many instances it has, see deciding/expansion; None for a task that is not mapped.
    expand: dict[str, Any] | None = None
    #: Its mapped task group: instance i waits for instance i of its upstream tasks in the group.
    mapped_group: str | None = None
    #: The last task of the loop that it is in: one instance of each task of a loop runs after the other.
    loop_gate: str | None = None
    depends_on_past: bool = False
    wait_for_downstream: bool = False
    ignore_first_depends_on_past: bool = True
    wait_for_past_depends_before_skipping: bool = False
    start_date: str | None = None
    end_date: str | None = None
    max_active_tis_per_dag: int | None = None
    max_active_tis_per_dagrun: int | None = None
    #: The events that create a notice: on_execute, on_success, on_failure, on_retry, on_skipped, email_failure, email_retry, asset.
    notify: tuple[str, ...] = ()
    email: tuple[str, ...] = ()
    sla_s: float | None = None
    #: The URIs of the assets that it updates.
    outlets: tuple[str, ...] = ()
    #: Of a task with tables: {"inputs": the URIs of the tables that it reads, "columns": what those that it writes come from}.
    lineage: dict[str, Any] | None = None
    #: Whether it can decide to skip downstream tasks.
    branches: bool = False

    @property
    def is_mapped(self) -> bool:
        return self.expand is not None

    @property
    def indirect_setups(self) -> tuple[str, ...]:
        """Its setups that are not direct upstream tasks."""
        return tuple(name for name in self.setups if name not in self.upstream) if self.setups else ()

    @property
    def is_limited(self) -> bool:
        """Whether the number of its own active instances is limited."""
        return self.max_active_tis_per_dag is not None or self.max_active_tis_per_dagrun is not None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The task with these values, faster than by setting its 40 fields: defaults are read from the class."""
        if missing := _required() - values.keys():
            raise TypeError(f"a task lacks {', '.join(sorted(missing))}")
        task = object.__new__(cls)
        task.__dict__.update(values)
        return task


def complete(stored: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a stored task, as JSON has them."""
    defaults = _defaults(SerializedTask)
    return {name: list(default) if isinstance(default, tuple) else default for name, default in defaults} | dict(stored)


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields with their defaults; a required one has MISSING, which no value equals."""
    return tuple((each.name, _default(each)) for each in fields(kind))


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


@cache
def _required() -> frozenset[str]:
    return frozenset(name for name, default in _defaults(SerializedTask) if default is MISSING)


@dataclass(frozen=True, slots=True)
class Traits:
    """How a runtime of `workers/task/execute.py` or `workers/spark/runtimes.py` differs from Python code in a pool process."""

    #: Whether a task may run in the process of the task before: it needs no session and no program of its own.
    in_place: bool = True
    #: Whether a task runs Spark jobs. Its default queue is then one of Spark.
    on_spark: bool = False
    #: Whether a task can return DataFrames.
    returns_frames: bool = False
    #: Whether a task has code. One without code succeeds at once, without a log.
    has_code: bool = True
    #: Whether processes that a task started stay after it, such as a warm JVM, which runs nothing of a task that has ended.
    keeps_processes: bool = False


#: By `Operator.worker_runtime`.
TRAITS = {
    "python": Traits(),
    "bash": Traits(),
    "empty": Traits(has_code=False),
    "pyspark": Traits(in_place=False, on_spark=True, returns_frames=True, keeps_processes=True),
    "spark_submit": Traits(in_place=False, on_spark=True),
}
#: Of a runtime that only a later release has.
UNKNOWN = Traits(in_place=False)


def traits(runtime: str) -> Traits:
    """The traits of a runtime."""
    return TRAITS.get(runtime, UNKNOWN)
