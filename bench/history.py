"""The part `history`: a database with a million finished task instances, or with as many as `--instances` says.

A chain and a fan on it, over the same on an empty one; requests of the pages; and retention of a day with a million of them.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from math import sqrt
from statistics import median, quantiles
from typing import Any

import httpx
import sqlalchemy

from bench import measure as measuring
from bench import shapes, web
from bench.measure import Measured
from bench.options import Options, Piece
from bench.shapes import Shape
from bench.stack import Stack
from scheduler.store.db.database import transact
from scheduler.store.upkeep.retention import FIRST_RUN, delete_runs

WIDTH = 500
#: Those of a day, which retention deletes.
DAY = 1_000_000
#: What the pages and commands ask for most. `{run}` is an old run of the chain.
READS = {
    "runs list": "/dags/~/dagRuns?limit=50&order_by=-run_after",
    "runs list of the pages": "/dags/~/runList?limit=50&order_by=-run_after",
    "runs of a DAG": "/dags/chain/dagRuns?limit=50",
    "grid": "/dags/chain/grid",
    "grid of a wide DAG": "/dags/wide/grid",
    "why a run": "/dags/chain/dagRuns/{run}/why",
    "why a task": "/dags/chain/dagRuns/{run}/taskInstances/t001/why",
    "task instances of a run": "/dags/chain/dagRuns/{run}/taskInstances?limit=100",
    "newest task instances": "/dags/~/dagRuns/~/taskInstances?limit=100&order_by=-id",
    "successes of the pages": "/dags/~/dagRuns/~/taskInstances?limit=100&order_by=-id&state=success&count_limit=10000",
    "failed task instances": "/dags/~/dagRuns/~/taskInstances?limit=100&state=failed",
    "search of all names": "/jump?text={run}",
    "search of runs": "/dags/~/dagRuns?limit=50&run_id_pattern={run}",
    "home": "/home",
}
#: As if each run had taken ten minutes: half of the runs belong to each DAG, and each has its task instances and events.
FILL = (
    "set session_replication_role = replica",  # no triggers for events and foreign keys on each row
    """
    insert into dag_run (dag_id, run_id, run_type, state, version_id, logical_date, data_interval_start, data_interval_end,
                         run_after, triggered_by, queued_at, started_at, ended_at)
    select d.dag_id, 'old-' || n, 'manual', 'success', d.version_id, m.at, m.at, m.at, m.at, 'cli', m.at, m.at,
           m.at + interval '9 minutes'
      from dag d
      join unnest(%(dags)s::text[], %(runs)s::int[]) w (dag_id, runs) on w.dag_id = d.dag_id
     cross join lateral generate_series(1, w.runs) n
     cross join lateral (select now() - interval '1 hour' - n * interval '10 minutes' as at) m
     order by m.at
    """,
    """
    insert into task_instance (dag_run_id, task_id, task_no, state, try_number, queue, pool, priority_weight, rank, dispatch_id,
                               dispatched_at, queued_by, worker, scheduled_at, queued_at, started_at, ended_at, reason)
    select r.id, k.value->>'task_id', k.no - 1, 'success', 1, 'default', 'default_pool', 1, 1, gen_random_uuid(), m.at,
           'old-scheduler', 'old-worker', m.at, m.at, m.at, m.at + interval '1 ms', 'its trigger rule is met'
      from dag_run r
      join dag_version v on v.id = r.version_id
     cross join lateral jsonb_array_elements(v.data->'tasks') with ordinality k (value, no)
     cross join lateral (select r.started_at + k.no * interval '2 ms' as at) m
     where r.run_id like 'old-%%'
     order by r.id, k.no
    """,
    """
    insert into event (at, dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason, queued_at, queued_by,
                       started_at, worker)
    select t.scheduled_at, t.dag_run_id, t.id, 0, null, 'scheduled', 'old-scheduler', t.reason, null, null, null, null
      from task_instance t where t.worker = 'old-worker'
    union all
    select t.ended_at, t.dag_run_id, t.id, 1, 'running', 'success', 'old-worker', null, t.queued_at, t.queued_by, t.started_at,
           t.worker
      from task_instance t where t.worker = 'old-worker'
    """,
    """
    insert into xcom (task_instance_id, key, value)
    select id, 'return_value', '{"rows": 1}' from task_instance where worker = 'old-worker' and id %% 3 = 0
    """,
    "vacuum analyze dag_run",
    "vacuum analyze task_instance",
    "vacuum analyze event",
    "vacuum analyze xcom",
    "checkpoint",
)


def measure(options: Options) -> Piece:
    """`history`: makespans in seconds and CPU seconds per task of both shapes on both databases. The ratio is the geometric mean of
    the ratios of both makespans."""
    chosen = (shapes.chain(3), shapes.wide(3)) if options.small else (shapes.chain(), shapes.wide(WIDTH))
    instances = 100 if options.small else options.instances
    files = shapes.files_of(chosen)
    found: dict[tuple[str, str], list[Measured]] = defaultdict(list)

    def over_empty(value: Callable[[Measured], float]) -> dict[str, float]:
        return {
            shape.name: round(median(map(value, found["full", shape.name])) / median(map(value, found["empty", shape.name])), 3)
            for shape in chosen
        }

    with Stack(files) as empty, Stack(files, schedulers=0, workers=0) as full:
        stacks = {"empty": empty, "full": full}
        full.start(schedulers=1, workers=0)  # its workers read the files
        full.stop_processes()
        fill(full, chosen, instances)
        full.start()
        for shape in chosen:
            for stack in stacks.values():
                measuring.run(stack, shape)
        for iteration in range(options.iterations):
            for shape in chosen:
                order = ("empty", "full", "full", "empty") if iteration % 2 == 0 else ("full", "empty", "empty", "full")
                for name in order:
                    found[name, shape.name].append(measuring.run(stacks[name], shape))
                options.say(
                    f"{shape.name}: " + ", ".join(f"{name} {found[name, shape.name][-1].makespan_s:.3f} s" for name in stacks)
                )
        full.stop_processes()
        reads = pages(full)
        deleted = retention(full, DAY)
        options.say(f"retention: {deleted}")
    makespan = over_empty(lambda measured: measured.makespan_s)
    cpu = over_empty(lambda measured: measured.cpu_s_per_task["total"])
    first, second = makespan.values()
    return {
        "history": {
            "instances": instances,
            "makespan_over_empty": makespan,
            "cpu_over_empty": cpu,
            "reads_ms": reads,
            "retention": deleted,
        },
        "ratios": {"history": round(sqrt(first * second), 3)},
    }


def fill(stack: Stack, chosen: tuple[Shape, ...], instances: int) -> None:
    """Insert that many finished task instances with their runs and events, half of them for each of two shapes."""
    runs = [max(1, instances // len(chosen) // shape.tasks) for shape in chosen]
    with stack.connection.cursor() as cursor:
        for statement in FILL:
            cursor.execute(statement, {"dags": [shape.dag_ids[0] for shape in chosen], "runs": runs})
        cursor.execute("set session_replication_role = origin")


def pages(stack: Stack) -> dict[str, dict[str, float]]:
    """The times of READS, in milliseconds."""
    ((run,),) = stack.rows("select run_id from dag_run where dag_id = 'chain' and run_id like 'old-%' order by run_after limit 1")
    with web.served(stack) as (address, token):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=address, headers=headers, timeout=300) as http:
            return {name: web.repeated(http, path.format(run=run)) for name, path in READS.items()}


def retention(stack: Stack, most: int) -> dict[str, Any]:
    """Delete the oldest runs with that many task instances, as the prune service does but without its pauses; then vacuum."""
    took_ms: list[float] = []
    sqlalchemy.event.listen(stack.engine, "before_cursor_execute", lambda *call: call[4].__dict__.update(began=time.perf_counter()))
    sqlalchemy.event.listen(
        stack.engine, "after_cursor_execute", lambda *call: took_ms.append((time.perf_counter() - call[4].began) * 1000)
    )
    cpu_s, ((wal,),) = stack.cpu_seconds()["postgres"], stack.rows(measuring.WAL)
    began, deleted, after = time.perf_counter(), 0, FIRST_RUN
    while after is not None and deleted < most:
        batch = transact(stack.engine, delete_runs, datetime.now(UTC), after)
        deleted, after = deleted + sum(run.instances for run in batch.runs), batch.after
    seconds = time.perf_counter() - began
    deleted_s, ((wal_after,),) = stack.cpu_seconds()["postgres"], stack.rows(measuring.WAL)
    for table in ("task_instance", "event", "xcom", "dag_run"):
        with stack.connection.cursor() as cursor:
            cursor.execute(f"vacuum {table}")
    vacuumed_s = stack.cpu_seconds()["postgres"]
    return {
        "instances": deleted,
        "seconds_per_million": round(seconds * 1e6 / deleted, 2),
        "cpu_s_per_million": round((deleted_s - cpu_s) * 1e6 / deleted, 2),
        "vacuum_cpu_s": round(vacuumed_s - deleted_s, 2),
        "wal_mb_per_million": round((wal_after - wal) / deleted, 1),
        "statements": len(took_ms),
        "longest_statement_ms": round(max(took_ms), 1),
        "p99_statement_ms": round(quantiles(took_ms, n=100, method="inclusive")[-1], 1),
    }
