"""The part `churn`: how much space dead rows take, in tables and indexes.

A database keeps a number of finished task instances (`--instances`). New ones run, and retention deletes as many of the oldest,
until each has been replaced; and all of that once more. A database that keeps a day of 100 tasks/s replaces its 8.64 million task
instances in 24 hours, so each page has the same work. Here it comes many times faster, and autovacuum looks as seldom as always:
that is a worst case.
"""

import time
from datetime import UTC, datetime
from typing import Any

from bench import shapes
from bench.history import fill
from bench.options import Options, Piece
from bench.stack import Stack
from scheduler.store.db.database import transact
from scheduler.store.upkeep.retention import delete_runs

ROUNDS, TASKS, RUNS = 2, 20, 100
RUN = f"""
with run as (
    insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, started_at)
    select d.dag_id, 'new-' || gen_random_uuid(), 'manual', 'running', d.version_id, now(), now()
      from dag d cross join generate_series(1, {RUNS}) returning id
)
insert into task_instance (dag_run_id, task_no, task_id, queue, pool)
select run.id, n, 't' || n, 'default', 'default_pool' from run cross join generate_series(0, {TASKS} - 1) n
"""
#: Three updates of each task instance, in parts as small as the batches of the services.
MOVES = (
    "state = 'queued', queued_at = clock_timestamp(), queued_by = 's', dispatch_id = gen_random_uuid() where state is null",
    "state = 'running', started_at = clock_timestamp(), worker = 'w' where state = 'queued'",
    "state = 'success', ended_at = clock_timestamp() where state = 'running'",
)
RESULTS = """
insert into xcom (task_instance_id, key, value)
select t.id, 'return_value', '{"rows": 1}' from task_instance t join dag_run r on r.id = t.dag_run_id
 where r.state = 'running' and t.id % 3 = 0
"""
END = "update dag_run set state = 'success', ended_at = clock_timestamp() where state = 'running'"
TABLES = ("dag_run", "task_instance", "event", "xcom")
SIZES = """
select c.relname, pg_relation_size(c.oid)
  from pg_class c left join pg_index i on i.indexrelid = c.oid
 where (c.oid = any(%(tables)s::regclass[]) or i.indrelid = any(%(tables)s::regclass[])) and pg_relation_size(c.oid) > 1000000
"""
VACUUMS = "select relname, autovacuum_count from pg_stat_user_tables where relname = any(%s)"


def measure(options: Options) -> Piece:
    """`churn`: the sizes of tables and indexes after each round, over those before the first, and of the second over the first."""
    shape = shapes.chain(3 if options.small else TASKS)
    instances = 300 if options.small else options.instances
    with Stack(shapes.files_of([shape]), schedulers=0, workers=0) as stack:
        stack.start(schedulers=1, workers=0)
        stack.stop_processes()
        fill(stack, (shape,), instances)
        sizes, began = [_sizes(stack)], time.perf_counter()
        for number in range(ROUNDS):
            _replace(stack, instances)
            sizes.append(_sizes(stack))
            options.say(f"round {number + 1}: {_over(sizes[-1], sizes[0])}")
        seconds = time.perf_counter() - began
        vacuums = dict(stack.rows(VACUUMS, (list(TABLES),)))
    first, *_, before_last, last = sizes
    return {
        "churn": {
            "instances": instances,
            "tasks_per_s": round(ROUNDS * instances / seconds),
            "autovacuums": vacuums,
            "mb": {name: round(size / 1e6, 1) for name, size in last.items()},
            "over_start": [_over(one, first) for one in sizes[1:]],
            "last_over_before": round(sum(last.values()) / max(1, sum(before_last.values())), 3),
        }
    }


def _replace(stack: Stack, instances: int) -> None:
    """Run as many task instances, and delete as many of the oldest."""
    for _ in range(max(1, instances // (TASKS * RUNS))):
        with stack.connection.cursor() as cursor:
            cursor.execute(RUN)
            for move in MOVES:
                cursor.execute(f"update task_instance set {move}")
            cursor.execute(RESULTS)
            cursor.execute(END)
        transact(stack.engine, delete_runs, datetime.now(UTC))


def _sizes(stack: Stack) -> dict[str, int]:
    """Bytes by table and index, without those below a megabyte."""
    return dict(stack.rows(SIZES, {"tables": list(TABLES)}))


def _over(sizes: dict[str, int], first: dict[str, int]) -> dict[str, Any]:
    return {name: round(size / first[name], 2) for name, size in sizes.items() if name in first}
