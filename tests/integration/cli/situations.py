"""Situations for `why`: how each comes about, what it is while it lasts, and what the history says of it afterwards.

Each is a run `one` of the DAG `d`: left, right >> load, whose states are set directly. All texts are about `load`, unless the
situation names another task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from support.scenario import Scenario, dag

from scheduler.store.upkeep import processes

EDGES = {"left": [], "right": [], "load": ["left", "right"]}
NOTHING = "Nothing blocks it: a scheduler moves it in its next pass, within about a second."
WAIT = "interval '40 s'"
#: Task instances that wait for a slot or in a queue began to wait 40 s earlier; those ahead were queued and started before.
EARLIER = (
    f"update event set at = at - {WAIT} where task_instance_id = %(ti)s and to_state = 'scheduled'",
    f"update event set queued_at = queued_at - 2 * {WAIT}, started_at = started_at - 2 * {WAIT} where task_instance_id <> %(ti)s",
    f"update task_instance set queued_at = queued_at - 2 * {WAIT}, started_at = started_at - 2 * {WAIT} where id <> %(ti)s",
    "update process set started_at = started_at - interval '1 hour'",
)
EARLIER_QUEUED = f"update event set queued_at = queued_at - {WAIT} where task_instance_id = %(ti)s and to_state = 'success'"
#: Default values of columns that states need.
COLUMNS = {
    "scheduled_at": "now()", "queued_at": "now()", "started_at": "now()", "ended_at": "now()", "queued_by": "'s#1'",
    "dispatch_id": "gen_random_uuid()", "due_at": "now() + interval '1 hour'", "requested_state": "'none'", "resume": "'{}'",
}  # fmt: skip
#: The steps of a dispatch, each at its own time.
STEPS = (
    "state = 'scheduled', scheduled_at = clock_timestamp(), queued_at = null, started_at = null, ended_at = null, resume = null",
    "state = 'queued', queued_at = clock_timestamp(), queued_by = 's#1', dispatch_id = gen_random_uuid(), resume = null",
    "state = 'running', started_at = clock_timestamp(), worker = %(worker)s, try_number = try_number + 1",
    "state = 'success', ended_at = clock_timestamp()",
)


class Place:
    """The run of a situation."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.sql, self.rows = scenario.sql, scenario.rows
        self.run = 0

    def add(self, edges: dict[str, Sequence[str]] | None = None, *, runs: Sequence[str] = ("one",), **options: Any) -> None:
        """Store `d` and start its runs. `run` is the last of them."""
        self.scenario.add(dag("d", edges or EDGES, **options))
        for name in runs:
            self.run = self.start(name)

    def start(self, run_id: str) -> int:
        run = self.scenario.trigger("d", run_id=run_id)
        self.sql("update dag_run set state = 'running', started_at = clock_timestamp() where id = %s", run)
        return run

    def set(self, task_id: str, state: str | None, *, run: int | None = None, **columns: Any) -> None:
        """Put a task instance into a state, with the columns that it needs."""
        given = {"worker": self.scenario.worker_id} | columns
        values = {"state": "%(state)s"} | COLUMNS | {name: f"%({name})s" for name in given}
        what = ", ".join(f"{name} = {value}" for name, value in values.items())
        with self.scenario.engine.begin() as connection:
            connection.exec_driver_sql(
                f"update task_instance set {what} where dag_run_id = %(run)s and task_id = %(task)s",
                given | {"run": run or self.run, "task": task_id, "state": state},
            )

    def key(self, task_id: str) -> int:
        return int(self.rows("select id from task_instance where dag_run_id = %s and task_id = %s", self.run, task_id)[0][0])

    def instances(self, task_id: str, *states: str | None) -> None:
        """Instances of a mapped task."""
        self.set(task_id, states[0], map_index=0)
        for index, state in enumerate(states[1:], 1):
            self.sql(
                "insert into task_instance (dag_run_id, task_id, task_no, map_index, queue, pool)"
                " select dag_run_id, task_id, task_no, %s, queue, pool from task_instance"
                " where dag_run_id = %s and task_id = %s and map_index = 0",
                index, self.run, task_id,
            )  # fmt: skip
            if state is not None:
                self.sql(
                    "update task_instance set state = %s, queued_at = now(), queued_by = 's#1', dispatch_id = gen_random_uuid()"
                    " where dag_run_id = %s and task_id = %s and map_index = %s",
                    state, self.run, task_id, index,
                )  # fmt: skip

    def finish(self, task_id: str, *, since: str | None = None) -> None:
        """Let a task instance go all the way to success; from `scheduled` or `queued` on, if it is that far."""
        first = {None: 0, "scheduled": 1, "queued": 2}[since]
        for step in STEPS[first:]:
            with self.scenario.engine.begin() as connection:
                given = {"id": self.key(task_id), "worker": self.scenario.worker_id}
                connection.exec_driver_sql(f"update task_instance set {step} where id = %(id)s", given)

    def earlier(self, task_id: str, *statements: str) -> None:
        """Let the task instance have waited for 40 s."""
        with self.scenario.engine.begin() as connection:
            for statement in (*EARLIER, *statements):
                connection.exec_driver_sql(statement, {"ti": self.key(task_id)})

    def worker(self, queue: str, concurrency: int = 1, kind: str = "worker") -> str:
        return processes.register(
            self.scenario.engine, kind=kind, name=f"{kind}-{queue}", host="h", pid=1, queues=(queue,), concurrency=concurrency
        )

    def clean(self) -> None:
        for table in ("dag_run", "backfill", "dag_schedule", "dag", "dag_version", "import_error"):
            self.sql(f"delete from {table} where {'file' if table == 'import_error' else 'dag_id'} like 'd%%'")
        self.sql("delete from pool where name <> 'default_pool'")
        self.sql("delete from process where name like '%%-%%'")
        self.sql("update process set stopped_at = null where kind = 'scheduler'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """`live` are the sentences, in which … stands for anything. `after`, a regular expression, is in the history after `solve`."""

    build: Callable[[Place], None]
    live: tuple[str, ...]
    after: str
    solve: Callable[[Place], None]
    #: None: it is about the run.
    task: str | None = "load"


def through(task_id: str = "load") -> Callable[[Place], None]:
    """Waiting task instances are decided, run and succeed."""
    return lambda place: place.finish(task_id)


def after_waiting(task_id: str = "load", since: str = "scheduled") -> Callable[[Place], None]:
    """The task instances that waited for 40 s move on, while all obstacles stay."""

    def solve(place: Place) -> None:
        place.finish(task_id, since=since)
        place.earlier(task_id, *([EARLIER_QUEUED] if since == "queued" else []))

    return solve


def ended(task_id: str = "load", state: str | None = "success", **columns: Any) -> Callable[[Place], None]:
    return lambda place: place.set(task_id, state, **columns)


def nothing(place: Place) -> None:
    """It is over already."""


def upstream(**states: str) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        place.add()
        for task_id, state in states.items():
            place.set(task_id, state)

    return build


def after_upstream(place: Place) -> None:
    place.set("left", "success")
    place.set("right", "success")
    place.finish("load")


def one_of_them(place: Place) -> None:
    place.add(rules={"load": "one_success"})
    place.set("left", "failed")
    place.set("right", "running")


def mapped_upstream(place: Place) -> None:
    place.add()
    place.instances("left", "success", None)
    place.set("right", "success")


def its_setup(place: Place) -> None:
    place.add({"up": [], "left": ["up"], "load": ["left"]}, options={"up": {"is_setup": True}, "load": {"setups": ("up",)}})
    place.set("left", "success")
    place.set("up", "running")


def its_scope(place: Place) -> None:
    edges = {"up": [], "left": ["up"], "right": ["left"], "load": ["up", "right"]}
    place.add(edges, options={"up": {"is_setup": True}, "load": {"is_teardown": True, "setups": ("up",), "scope": ("left", "right"),
              "trigger_rule": "all_done_setup_success"}})  # fmt: skip
    place.set("up", "success")
    place.set("right", "success")
    place.set("left", "running")


def a_result(place: Place) -> None:
    expand = {"kind": "product", "inputs": [{"task": "left", "key": "return_value"}]}
    place.add(options={"load": {"expand": expand}})
    place.set("left", "running")
    place.set("right", "success")


def the_past(**options: Any) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        place.add({"load": [], "below": ["load"]}, runs=("zero", "one"), task={"depends_on_past": True, **options})
        (zero,) = place.rows("select id from dag_run where run_id = 'zero'")[0]
        place.set("load", "success" if options else "failed", run=zero)
        place.set("below", "failed", run=zero)

    return build


def pool(slots: int | None, *, needs: int = 1, held: int = 1, state: str = "running", deferred: bool = False, rank: int = 0) -> Any:
    def build(place: Place) -> None:
        place.add()
        if slots is not None:
            place.scenario.pool("db", slots)
            place.sql("update pool set include_deferred = %s where name = 'db'", deferred)
        if held:
            place.set("left", state, pool="db", pool_slots=held, rank=rank)
        place.set("load", "scheduled", pool="db", pool_slots=needs)

    return build


def reserved(place: Place) -> None:
    pool(3, held=2)(place)
    place.set("right", "scheduled", pool="db", pool_slots=3, rank=5)


def limits(columns: dict[str, int], *, runs: tuple[str, ...] = ("one",), **options: Any) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        place.add(runs=runs, **options)
        if len(runs) > 1:
            (zero,) = place.rows("select id from dag_run where run_id = 'zero'")[0]
            place.set("load", "running", run=zero, **columns)
        elif columns:
            place.instances("load", "running", "scheduled")
            place.sql(
                "update task_instance set max_active_tis_per_dagrun = 1 where dag_run_id = %s and task_id = 'load'", place.run
            )
            return
        else:
            place.set("left", "running")
        place.set("load", "scheduled", **columns)

    return build


def queue(*, workers: int, queued: int = 0, running: int = 0, state: str = "scheduled", **columns: Any) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        place.add()
        if workers:
            place.worker("q", workers)
        if queued + running:
            place.instances("left", *["running"] * running, *["queued"] * queued)
            place.sql("update task_instance set started_at = case when state = 'running' then now() end where task_id = 'left'")
            place.sql("update task_instance set queue = 'q' where task_id = 'left'")
        place.set("load", state, queue="q", resume=None, **columns)

    return build


def in_state(state: str, **columns: Any) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        place.add()
        place.set("load", state, **columns)

    return build


def silent(place: Place) -> None:
    place.add()
    lost = place.worker("lost")
    place.sql("update process set heartbeat_at = now() - interval '1 hour' where id = %s", lost)
    place.set("load", "running", worker=lost)


def deferred(*, trigger: bool = True, waiter: bool = False) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        place.add()
        place.set("load", "deferred")
        if not waiter:
            place.sql("update task_instance set due_at = null where task_id = 'load'")
        if trigger:
            place.sql(
                "insert into deferral (task_instance_id, dispatch_id, classpath, waiter)"
                " select id, dispatch_id, 'a.Moment', %s from task_instance where id = %s",
                place.worker("any", kind="waiter") if waiter else None,
                place.key("load"),
            )

    return build


def queued_run(*others: str, **options: Any) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        place.add(runs=others, **options)
        place.run = place.scenario.trigger("d", run_id="one")

    return build


def run_not_due(place: Place) -> None:
    queued_run()(place)
    place.sql("update dag_run set run_after = now() + interval '1 hour'")


def a_backfill(*, paused: bool, others: tuple[str, ...] = ()) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        queued_run(*others)(place)
        insert_backfill(place, runs=[run for (run,) in place.rows("select id from dag_run")], paused=paused)

    return build


def insert_backfill(place: Place, *, runs: Sequence[int], max_active_runs: int = 1, paused: bool = False) -> None:
    """Backfill 7, which made these runs."""
    place.sql(
        "insert into backfill (id, dag_id, version_id, from_date, to_date, max_active_runs, reprocess, is_paused)"
        " overriding system value select 7, 'd', max(version_id), now(), now(), %s, 'none', %s from dag_run",
        max_active_runs, paused,
    )  # fmt: skip
    place.sql("update dag_run set backfill_id = 7, backfill_ordinal = id where id = any(%s)", list(runs))


def behind_another_run(place: Place) -> None:
    place.add(runs=("zero",), max_active_runs=1)
    place.scenario.trigger("d", run_id="before")
    place.run = place.scenario.trigger("d", run_id="one")


def begun(place: Place) -> None:
    """The run starts, after it waited for 40 s for the others, which run for longer."""
    place.sql("update dag_run set state = 'running', started_at = clock_timestamp() where id = %s", place.run)
    place.sql(f"update event set at = at - {WAIT} where dag_run_id = %s and to_state = 'queued'", place.run)
    place.sql(f"update dag_run set started_at = started_at - 2 * {WAIT} where id <> %s", place.run)


def paused(place: Place) -> None:
    in_state("scheduled")(place)
    place.sql("update dag_schedule set is_paused = true where dag_id = 'd'")


def import_error(place: Place) -> None:
    in_state("scheduled")(place)
    place.sql("insert into import_error (file, line, message) values ('d.py', 7, 'NameError: x')")


def nothing_works(place: Place) -> None:
    import_error(place)
    place.sql("update dag_schedule set is_paused = true where dag_id = 'd'")
    place.sql("update process set stopped_at = now() where kind = 'scheduler'")


def undecidable(place: Place) -> None:
    in_state("scheduled")(place)
    place.sql("update dag_run set scheduling_error = 'its version cannot be read'")


def run_over(place: Place) -> None:
    place.add()
    place.sql("update dag_run set state = 'failed', ended_at = now()")
