"""The catalog of all metrics: name, type, labels, origin and meaning. docs/reference/metrics.md is generated from it.

Metrics that Airflow has too have its names, types and units, and in StatsD the dotted names with which its dashboards work.
"""

import re
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The type of a metric. A timer is in milliseconds in StatsD and a histogram in seconds in Prometheus, as usual in each."""

    COUNTER = "counter"
    GAUGE = "gauge"
    TIMER = "timer"


class Origin(Enum):
    """The origin of a metric."""

    #: The events and task instances that one scheduler at a time reads.
    EVENTS = "events"
    #: One query, at each scrape or, for StatsD, each interval.
    DATABASE = "database"
    #: The process that counts or times it.
    PROCESS = "process"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric, compared by identity. `dotted` are its names in StatsD, with labels in braces; without any, StatsD has none."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    origin: Origin
    meaning: str
    dotted: tuple[str, ...] = ()
    is_airflow: bool = False

    def prometheus(self, prefix: str) -> str:
        """Its name in Prometheus without the suffix of its type. `prefix` is only for metrics of Airflow."""
        name = f"{prefix}_{self.name}" if self.is_airflow else self.name
        unit = "_seconds" if self.kind is Kind.TIMER and not name.endswith("_runtime") else ""
        return re.sub(r"[^A-Za-z0-9_]+", "_", name.replace("{", "").replace("}", "")) + unit


#: The values of the labels of a series.
Labels = tuple[str, ...]
C, G, T = Kind.COUNTER, Kind.GAUGE, Kind.TIMER
EVENTS, DATABASE, PROCESS = Origin.EVENTS, Origin.DATABASE, Origin.PROCESS
TASK = ("dag_id", "task_id")
PLACE = ("queue", "dag_id", "task_id")


def _airflow(  # noqa: PLR0917 - a row of the table below
    kind: Kind, name: str, origin: Origin, meaning: str, labels: tuple[str, ...] = (), dotted: str = "", also: tuple[str, ...] = ()
) -> Metric:
    """A metric of Airflow. `dotted` is its name with labels if that is not name.label.label. A counter or timer has a total too."""
    own = dotted or ".".join([name, *(f"{{{label}}}" for label in labels)])
    total = (name,) if labels and kind is not G and "{" not in name else ()
    return Metric(name, kind, labels, origin, meaning, (*total, own, *also), is_airflow=True)


AIRFLOW = (
    # Task instances
    _airflow(C, "ti.start", EVENTS, "Tries that started.", TASK),
    _airflow(C, "ti.finish", EVENTS, "Tries that ended, by the state after them.", (*TASK, "state")),
    _airflow(C, "ti_successes", EVENTS, "Tries that succeeded."),
    _airflow(C, "ti_failures", EVENTS, "Tries that failed, whether or not another one follows."),
    _airflow(C, "operator_successes", EVENTS, "Tries that succeeded, by operator.", ("operator",), "operator_successes_{operator}"),
    _airflow(C, "operator_failures", EVENTS, "Tries that failed, by operator.", ("operator",), "operator_failures_{operator}"),
    _airflow(C, "task_instance_created", EVENTS, "Task instances of new runs, without those of mapped tasks, by operator.",
             ("operator",), "task_instance_created_{operator}"),
    _airflow(T, "task.duration", EVENTS, "Time from the start to the end of a try.", TASK, "dag.{dag_id}.{task_id}.duration"),
    _airflow(T, "task.queued_duration", EVENTS, "Time from queued to running.", TASK, "dag.{dag_id}.{task_id}.queued_duration"),
    _airflow(T, "task.scheduled_duration", EVENTS, "Time from scheduled to queued.", TASK,
             "dag.{dag_id}.{task_id}.scheduled_duration"),
    _airflow(C, "task_instances_without_heartbeats_killed", EVENTS, "Tries that failed because their worker was declared lost."),
    _airflow(C, "scheduler.tasks.killed_externally", EVENTS, "Tries whose process was killed or exited, such as out of memory."),
    _airflow(C, "scheduler.orphaned_tasks.cleared", EVENTS, "Queued task instances that were scheduled again."),
    _airflow(C, "celery.execute_command.failure", EVENTS, "Tries that failed in a worker."),
    _airflow(C, "task_removed_from_dag", EVENTS, "Task instances whose task was removed from the DAG.", ("dag_id",)),
    _airflow(C, "task_restored_to_dag", EVENTS, "Task instances whose task returned to the DAG.", ("dag_id",)),
    _airflow(G, "ti.scheduled", DATABASE, "Scheduled task instances.", PLACE),
    _airflow(G, "ti.queued", DATABASE, "Queued task instances.", PLACE),
    _airflow(G, "ti.running", DATABASE, "Running task instances.", PLACE),
    _airflow(G, "ti.deferred", DATABASE, "Deferred task instances.", PLACE),
    # DAG runs
    _airflow(T, "dagrun.duration.success", EVENTS, "Time from the start to the success of a run.", ("dag_id",)),
    _airflow(T, "dagrun.duration.failed", EVENTS, "Time from the start to the failure of a run.", ("dag_id",)),
    _airflow(T, "dagrun.schedule_delay", EVENTS, "Time from when a scheduled run was due to its start.", ("dag_id",)),
    _airflow(T, "dagrun.first_task_scheduling_delay", EVENTS, "Time from when a scheduled run was due to the start of its first"
             " task.", ("dag_id",), "dagrun.{dag_id}.first_task_scheduling_delay"),
    _airflow(T, "dagrun.first_task_start_delay", EVENTS, "Time from the creation of a run to the start of its first task.",
             ("dag_id",)),
    # The mapping of Airflow's Helm chart expects two parts after dependency-check.
    _airflow(T, "dagrun.dependency-check", PROCESS, "Time in which a scheduler decides what can run next in a run.", ("dag_id",),
             also=("dagrun.dependency-check.{dag_id}.run",)),
    _airflow(G, "scheduler.dagruns.running", DATABASE, "Running DAG runs."),
    _airflow(C, "asset.triggered_dagruns", EVENTS, "Runs that updates of assets created."),
    _airflow(C, "asset.updates", PROCESS, "Updates of assets."),
    _airflow(C, "deadline_alerts.deadline_created", EVENTS, "SLAs and deadlines of new runs, except by average runtime."),
    _airflow(C, "deadline_alerts.deadline_not_missed", PROCESS, "SLAs and deadlines that were met, counted when they were due."),
    _airflow(C, "deadline_alerts.deadline_missed", PROCESS, "SLAs and deadlines that were missed."),
    # Pools and places
    _airflow(G, "pool.open_slots", DATABASE, "Free slots of a pool; -1 if it has no limit.", ("pool",)),
    _airflow(G, "pool.used_slots", DATABASE, "Slots of a pool that task instances hold.", ("pool",)),
    _airflow(G, "pool.queued_slots", DATABASE, "Slots that queued task instances hold.", ("pool",)),
    _airflow(G, "pool.running_slots", DATABASE, "Slots that running task instances hold.", ("pool",)),
    _airflow(G, "pool.deferred_slots", DATABASE, "Slots of deferred task instances.", ("pool",)),
    _airflow(G, "pool.scheduled_slots", DATABASE, "Slots that scheduled task instances need.", ("pool",)),
    _airflow(G, "pool.starving_tasks", DATABASE, "Scheduled task instances of a pool without free slots.", ("pool",)),
    _airflow(G, "executor.open_slots", DATABASE, "Free places of live workers.", also=("executor.open_slots.CeleryExecutor",)),
    _airflow(G, "executor.queued_tasks", DATABASE, "Queued task instances.", also=("executor.queued_tasks.CeleryExecutor",)),
    _airflow(G, "executor.running_tasks", DATABASE, "Running task instances.", also=("executor.running_tasks.CeleryExecutor",)),
    # Schedulers
    _airflow(C, "{job_name}_start", PROCESS, "Starts of a process: schedulerjob, dagprocessorjob or triggererjob.", ("job_name",),
             "{job_name}_start"),
    _airflow(C, "{job_name}_end", PROCESS, "Clean ends of a process.", ("job_name",), "{job_name}_end"),
    _airflow(C, "{job_name}_heartbeat_failure", PROCESS, "Times a process was declared lost and registered again.", ("job_name",),
             "{job_name}_heartbeat_failure"),
    _airflow(C, "scheduler_heartbeat", PROCESS, "Passes of the scheduler loop's heartbeat."),
    _airflow(T, "scheduler.scheduler_loop_duration", PROCESS, "Time of a pass of the scheduler loop."),
    _airflow(T, "scheduler.critical_section_duration", PROCESS, "Time to choose and queue task instances, under locks."),
    _airflow(C, "scheduler.critical_section_busy", PROCESS, "Times another scheduler had locked a pool."),
    _airflow(G, "scheduler.tasks.executable", PROCESS, "Task instances that the last pass queued."),
    _airflow(G, "scheduler.tasks.starving", DATABASE, "Scheduled task instances of pools without free slots."),
    _airflow(C, "scheduler.orphaned_tasks.adopted", PROCESS, "Lost messages of queued task instances that were sent again."),
    _airflow(C, "celery.task_timeout_error", PROCESS, "Failures to send messages to the broker."),
    # DAG files
    _airflow(C, "dag_processor_heartbeat", PROCESS, "Iterations over the DAG files."),
    _airflow(G, "dagbag_size", DATABASE, "Active DAGs."),
    _airflow(G, "dag_processing.import_errors", DATABASE, "DAG files that cannot be used."),
    _airflow(G, "dag_processing.file_path_queue_size", DATABASE, "DAG files that are due."),
    _airflow(G, "dag_processing.total_parse_time", DATABASE, "Seconds that the last parse of each DAG file took, added up."),
    _airflow(G, "dag_processing.last_run.seconds_ago", DATABASE, "Seconds since a DAG file was parsed.", ("dag_file",)),
    _airflow(G, "dag_processing.last_runtime", DATABASE, "Seconds that the last parse of a DAG file took.", ("dag_file",)),
    _airflow(T, "dag_processing.last_duration", PROCESS, "Time to parse a DAG file.", ("dag_file",),
             also=("dag_processing.last_duration.dags-folder.{dag_file}",)),
    _airflow(C, "dag_processing.processor_timeouts", PROCESS, "DAG files whose parser was killed because it took too long."),
    _airflow(C, "dag_processing.file_path_queue_update_count", PROCESS, "Listings of the DAGs folder."),
    _airflow(C, "dag_file_refresh_error", PROCESS, "Parses that failed."),
    _airflow(C, "dag_processing.other_callback_count", PROCESS, "Notices whose callbacks or email were started."),
    _airflow(C, "dag.callback_exceptions", PROCESS, "Callbacks and emails that failed."),
    # Lineage
    _airflow(C, "ol.emit.failed", PROCESS, "OpenLineage events that the server did not take."),
    # Waiters
    _airflow(C, "triggerer_heartbeat", PROCESS, "Iterations of a waiter's loop in which it was registered."),
    _airflow(G, "triggers.running", PROCESS, "Triggers that a waiter awaits.", ("hostname",)),
    _airflow(G, "triggerer.capacity_left", PROCESS, "Triggers that a waiter could await in addition.", ("hostname",)),
    _airflow(C, "triggers.succeeded", PROCESS, "Triggers that fired."),
    _airflow(C, "triggers.failed", PROCESS, "Triggers that failed."),
    _airflow(C, "triggers.blocked_main_thread", PROCESS, "Triggers that blocked all others."),
)  # fmt: skip

OWN = (
    Metric("paceline.health", G, ("part",), PROCESS, "1 if a part of this process is healthy, else 0."),
    Metric("paceline.database_up", G, (), PROCESS, "1 if the query of the gauges succeeded, else 0."),
    Metric("paceline.processes", G, ("kind", "state"), DATABASE, "Registered processes, alive or silent.",
           ("paceline.processes.{kind}.{state}",)),
    Metric("paceline.dag_runs", G, ("state",), DATABASE, "Unfinished DAG runs.", ("paceline.dag_runs.{state}",)),
    Metric("paceline.queue.oldest_waiting_seconds", G, ("queue",), DATABASE, "Age of the oldest task instance that waits.",
           ("paceline.queue.oldest_waiting_seconds.{queue}",)),
    Metric("paceline.queue.places", G, ("queue",), DATABASE, "Pool processes of live workers of a queue.",
           ("paceline.queue.places.{queue}",)),
    Metric("paceline.notices_pending", G, (), DATABASE, "Callbacks and emails that are not delivered.",
           ("paceline.notices_pending",)),
    Metric("paceline.events_read", C, (), EVENTS, "Events that this scheduler has turned into metrics."),
    Metric("paceline.events_behind_seconds", G, (), EVENTS, "Age of the newest event that is not read; 0 on other schedulers."),
    Metric("paceline.web_requests", C, ("method", "status"), PROCESS, "Responses of a web process.",
           ("paceline.web_requests.{method}.{status}",)),
    Metric("paceline.series_dropped", C, ("metric",), PROCESS, "Label sets that were not counted, because a metric has too many."),
    Metric("paceline.statsd_dropped", C, (), PROCESS, "Datagrams that the StatsD server did not take."),
)  # fmt: skip

#: The names of danihodovic/celery-exporter. The task is called dag.task. They need no events of Celery.
CELERY_TASK = ("name", "hostname", "queue_name")
CELERY = (
    Metric("celery_task_sent", C, CELERY_TASK, EVENTS, "Messages of tasks that a worker received."),
    Metric("celery_task_received", C, CELERY_TASK, EVENTS, "Messages of tasks that a worker received."),
    Metric("celery_task_started", C, CELERY_TASK, EVENTS, "Tries that started."),
    Metric("celery_task_succeeded", C, CELERY_TASK, EVENTS, "Tries that succeeded."),
    Metric("celery_task_failed", C, (*CELERY_TASK, "exception"), EVENTS, "Tries that failed for good, by the class of the error."),
    Metric("celery_task_retried", C, CELERY_TASK, EVENTS, "Tries after which another one follows."),
    Metric("celery_task_revoked", C, CELERY_TASK, EVENTS, "Tries that a person stopped."),
    Metric("celery_task_runtime", T, CELERY_TASK, EVENTS, "Time from the start to the end of a try."),
    Metric("celery_worker_up", G, ("hostname",), DATABASE, "1 if a worker sends heartbeats, else 0."),
    Metric("celery_worker_tasks_active", G, ("hostname",), DATABASE, "Task instances that a worker runs."),
    Metric("celery_queue_length", G, ("queue_name",), DATABASE, "Queued task instances of a queue."),
    Metric("celery_active_consumer_count", G, ("queue_name",), DATABASE, "Live workers of a queue."),
    Metric("celery_active_worker_count", G, ("queue_name",), DATABASE, "Live workers of a queue."),
    Metric("celery_active_process_count", G, ("queue_name",), DATABASE, "Pool processes of live workers of a queue."),
)

CATALOG: dict[str, Metric] = {metric.name: metric for metric in (*AIRFLOW, *OWN, *CELERY)}
