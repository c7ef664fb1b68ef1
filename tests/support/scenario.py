"""Schedulers and a worker without processes, on real PostgreSQL and Redis. The test runs each scheduler iteration and each task."""

import base64
import json
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from paceline.states import TaskState
from scheduler.dagfiles.loaded_versions import LoadedVersions
from scheduler.messaging.brokers import Brokers
from scheduler.messaging.publisher import Publisher, broker_lists
from scheduler.messaging.wakeups import Wakeups
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.services.loop import SchedulerLoop
from scheduler.services.prune import Prune
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs
from scheduler.store.upkeep import processes
from scheduler.store.worker.claims import Claim, Ending
from scheduler.store.worker.hot_path import HotPath
from workers.process import logs
from workers.process.guard import Guard
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import InPlaceSeries
from workers.task.execute import TryRunner
from workers.task.follow import DatabaseStore, Follower

WORKER_PLACES = 64
#: In seconds. A test with a shorter heartbeat timeout is about missing heartbeats.
SLOWEST_BEAT_S = 5.0


def dag(dag_id: str, edges: dict[str, Sequence[str]], *, rules: dict[str, str] | None = None, **options: Any) -> SerializedDag:
    """A DAG from {task_id: upstream task_ids}, in topological order; options of the DAG, of all tasks as `task=dict(...)`, or
    of some as `options={task_id: dict(...)}`.
    """
    shared = options.pop("task", {})
    own = options.pop("options", {})
    tasks = tuple(
        SerializedTask(
            task_id=name,
            operator="EmptyOperator",
            upstream=tuple(above),
            **{"runtime": "empty", "trigger_rule": (rules or {}).get(name, "all_success"), **shared, **own.get(name, {})},
        )
        for name, above in edges.items()
    )
    defaults = {"file": f"{dag_id}.py", "schedule": {"kind": "never"}, "max_active_tasks": 1000}
    return SerializedDag(dag_id=dag_id, tasks=tasks, **(defaults | options))


def chain(dag_id: str, length: int, **options: Any) -> SerializedDag:
    names = [f"t{number:03}" for number in range(length)]
    return dag(dag_id, {name: names[max(0, at - 1) : at] for at, name in enumerate(names)}, **options)


def wide(dag_id: str, width: int, **options: Any) -> SerializedDag:
    """A DAG of tasks without edges."""
    return dag(dag_id, {f"t{number:04}": [] for number in range(width)}, **options)


def of(task_id: str) -> dict[str, Any]:
    """The result of a task, to map over."""
    return {"task": task_id, "key": "return_value"}


def product(*refs: dict[str, Any]) -> dict[str, Any]:
    """The options of a task that is mapped over the product of these."""
    return {"expand": {"kind": "product", "inputs": list(refs)}}


class Scenario:
    """Schedulers and the follower of one worker, on the test's own database and broker."""

    def __init__(self, settings: Settings, *, schedulers: int = 1, follow: bool = True) -> None:
        self.settings = settings
        self.engine = database.create(settings)
        self.brokers = Brokers(settings)
        self.broker = self.brokers.all[0].client
        self.schedulers = [SchedulerLoop(self.engine, settings, name=f"s{number}") for number in range(schedulers)]
        self.worker_id = processes.register(
            self.engine, kind="worker", name="w", host="h", pid=1, queues=["default"], concurrency=WORKER_PLACES
        )
        self.hot = HotPath(settings, self.worker_id)
        self.follower = Follower(self.hot, Publisher(settings), Wakeups(settings), enabled=follow)
        self.queues = {"default"}

    def close(self) -> None:
        self.hot.close()
        for scheduler in self.schedulers:
            scheduler.close()
        self.engine.dispose()

    def add(self, new: SerializedDag) -> SerializedDag:
        """Store a DAG as its parser would."""
        with self.engine.begin() as connection:
            version = connection.exec_driver_sql(
                "insert into dag_version (dag_id, number, content_hash, data)"
                " select %s, coalesce(max(number), 0) + 1, %s, %s from dag_version where dag_id = %s returning id",
                (new.dag_id, new.content_hash, new.to_json(), new.dag_id),
            ).scalar_one()
            connection.exec_driver_sql(
                "insert into dag (dag_id, file, version_id) values (%s, %s, %s)"
                " on conflict (dag_id) do update set version_id = excluded.version_id",
                (new.dag_id, new.file, version),
            )
            connection.exec_driver_sql("insert into dag_schedule (dag_id) values (%s) on conflict do nothing", (new.dag_id,))
        self.queues |= {task.queue for task in new.tasks if task.queue}
        return new

    def pool(self, name: str, slots: int, queue: str | None = None) -> None:
        self.sql("insert into pool (name, slots, queue) values (%s, %s, %s)", name, slots, queue)

    def trigger(self, dag_id: str, **options: Any) -> int:
        return transact(self.engine, manual_runs.trigger, dag_id, **options).id

    def triggered(self, new: SerializedDag, **options: Any) -> int:
        """Store a DAG and trigger a run of it."""
        self.add(new)
        return self.trigger(new.dag_id, **options)

    def start(self, new: SerializedDag, **options: Any) -> int:
        """Store a DAG, trigger a run of it and take a turn, so that its first tasks are queued."""
        run = self.triggered(new, **options)
        self.turn()
        return run

    def finish(self, new: SerializedDag, **options: Any) -> int:
        """Store a DAG, trigger a run of it and work until no run is open."""
        run = self.triggered(new, **options)
        self.run_to_end()
        return run

    def turn(self, *, poll: bool = True) -> None:
        """Run one iteration of every scheduler, in random order. `poll` makes every service due, except retention after the first
        turn: its interval is an hour, and it takes a fifth of the transactions of a turn.
        """
        self.beat()
        for scheduler in random.sample(self.schedulers, len(self.schedulers)):
            if poll:
                for name, timer in scheduler.timers.items():
                    if name != Prune.name:
                        timer.due_at = 0.0
            scheduler.run_once()

    def beat(self) -> None:
        """Send the heartbeat of the worker, so that a slow machine does not lose it. A heartbeat that a test has aged stays old."""
        if self.settings.worker.heartbeat_timeout >= SLOWEST_BEAT_S:
            self.sql(
                "update process set heartbeat_at = clock_timestamp()"
                " where id = %s and stopped_at is null and heartbeat_at > clock_timestamp() - interval '2 minutes'",
                self.worker_id,
            )

    def messages(self) -> list[tuple[int, str]]:
        """Remove every message from the broker, and return each as (task instance ID, dispatch ID)."""
        taken = []
        for queue in sorted(self.queues):
            for key in broker_lists(queue):
                while (body := self.broker.rpop(key)) is not None:
                    taken.append(tuple(json.loads(base64.b64decode(json.loads(body)["body"]))[0]))
        return taken

    def claim(self, message: tuple[int, str]) -> Claim | None:
        return self.hot.claim(*message)

    def work(
        self, outcome: Callable[[Claim], TaskState | Ending] = lambda claim: TaskState.SUCCESS, *, shuffle: bool = False
    ) -> int:
        """Run all tasks that have a message in the broker. Returns the number of task instances that ran."""
        waiting = self.messages()
        if shuffle:
            random.shuffle(waiting)
        ran = 0
        for message in waiting:
            claim = self.claim(message)
            if claim is not None:
                ending = outcome(claim)
                assert self.follower.report(claim, ending if isinstance(ending, Ending) else Ending(ending, delay_s=0.0)).is_stored
                ran += 1
        return ran

    def run_to_end(self, *, turns: int = 500, **work: Any) -> None:
        """Run schedulers and tasks until no run is open, and none after a turn: the last task closes its run, and what that makes
        due, such as a run after an update of an asset, is for a scheduler.
        """
        was_open = True
        for _ in range(turns):
            self.turn()
            while self.work(**work):
                pass
            is_open = bool(self.rows("select 1 from dag_run where state in ('queued', 'running')"))
            if not (is_open or was_open):
                return
            was_open = is_open
        raise AssertionError(f"runs still open after {turns} turns: {self.states()}")

    def states(self, dag_run_id: int | None = None) -> dict[str, str]:
        """The states by task_id, or task_id[map_index] if mapped, of one run, or of the only one."""
        rows = self.rows(
            "select task_id || case when map_index < 0 then '' else '[' || map_index || ']' end, coalesce(state, 'none')"
            " from task_instance where %s::bigint is null or dag_run_id = %s order by id",
            dag_run_id,
            dag_run_id,
        )
        return dict(rows)

    def scheduled_dates(self) -> list[datetime]:
        """The logical dates of the scheduled runs, in order."""
        return [row[0] for row in self.rows("select logical_date from dag_run where run_type = 'scheduled' order by 1")]

    def run_state(self, dag_run_id: int) -> str:
        return self.rows("select state from dag_run where id = %s", dag_run_id)[0][0]

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement, parameters).all()]

    def sql(self, statement: str, *parameters: Any) -> None:
        with self.engine.begin() as connection:
            connection.exec_driver_sql(statement, parameters)


def pool_process(scenario: Scenario, *, in_place_seconds: float = 0.0, running: RunningTasks | None = None) -> TryRunner:
    """A try runner in this process, like that of a pool process of the scenario's worker, or of the worker of `running`."""
    settings = scenario.settings
    if running is None:
        running = RunningTasks(1)
        running.worker_id = scenario.worker_id
    slot = running.slot(0)
    return TryRunner(
        settings=settings,
        logs_folder=settings.logs_folder,
        store=DatabaseStore(settings, scenario.hot, scenario.follower),
        files=LoadedVersions(settings.dags_folder),
        slot=slot,
        guard=Guard(),
        log=logs.TryLog(),
        series=InPlaceSeries(slot, seconds=in_place_seconds),
    )
