"""A task as data: every default is filled in."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializedTask:
    """One task with every default filled in; durations in seconds."""

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
    #: It runs only while its worker has a lease, see docs/explanation/exclusive-tasks.md.
    exclusive: bool = False
    queue: str | None = None
    pool: str = "default_pool"
    #: A pool of this name, if there is one, is its pool: that of the Spark cluster it submits to, called as its connection.
    cluster: str | None = None
    pool_slots: int = 1
    #: Effective weight: own plus that of the tasks its weight_rule counts.
    priority_weight: int = 1
    #: The innermost task group, for people.
    group: str | None = None
    is_setup: bool = False
    is_teardown: bool = False
    on_failure_fail_dagrun: bool = False
    #: Setups whose scope it lies in, also indirect ones: each of these must have succeeded, unless its trigger rule is `always`.
    setups: tuple[str, ...] = ()
    #: Of a teardown: what else lies between its setups and itself, and must have ended.
    scope: tuple[str, ...] = ()
    #: How many instances it becomes, see deciding/expansion; None for a task that is not mapped.
    expand: dict[str, Any] | None = None
    #: The mapped task group it belongs to: instance i waits for instance i of the group's other tasks.
    mapped_group: str | None = None
    depends_on_past: bool = False
    wait_for_downstream: bool = False
    ignore_first_depends_on_past: bool = True
    wait_for_past_depends_before_skipping: bool = False
    start_date: str | None = None
    end_date: str | None = None
    max_active_tis_per_dag: int | None = None
    max_active_tis_per_dagrun: int | None = None
    #: What gives a notice: on_execute, on_success, on_failure, on_retry, on_skipped, email_failure, email_retry, asset.
    notify: tuple[str, ...] = ()
    email: tuple[str, ...] = ()
    sla_s: float | None = None
    #: URIs of the assets it updates.
    outlets: tuple[str, ...] = ()
    #: It may decide to skip tasks below it.
    branches: bool = False

    @property
    def is_mapped(self) -> bool:
        return self.expand is not None

    @property
    def indirect_setups(self) -> tuple[str, ...]:
        """Setups further up than directly above it."""
        return tuple(name for name in self.setups if name not in self.upstream) if self.setups else ()

    @property
    def is_limited(self) -> bool:
        """Whether instances of this very task are counted."""
        return self.max_active_tis_per_dag is not None or self.max_active_tis_per_dagrun is not None
