"""The part `children`: workers of 1 and of 16 pool processes, and how long a task waits that arrives while all of them are busy."""

import time
from typing import Any

from bench import shapes, throughput
from bench.measure import quantiles
from bench.options import Options, Piece
from bench.shapes import Shape
from bench.stack import Stack

COUNTS = (1, 16)
SHAPES = ("chain", "wide")
#: Rows of no-op tasks for each pool process, and their tasks in all: more than run while all others arrive.
ROWS, TASKS = 2, 6000
ARRIVALS, PAUSE_S = 60, 0.05
WAITS = """
    select extract(epoch from t.started_at - r.queued_at)::float8 * 1000
      from task_instance t join dag_run r on r.id = t.dag_run_id where r.id = any(%s) order by 1
"""
RUNNING = "select count(*) from dag_run where id = any(%s) and state = 'running'"


def measure(options: Options) -> Piece:
    """`children`, by the number of pool processes: the figures of each shape, beside bare Celery with as many; and `wait_ms`, from
    the making of a run to the start of its only task, which ranks above all others, while rows of tasks keep every process busy.
    """
    known = shapes.small() if options.small else shapes.full()
    tasks, arrivals = (100, 3) if options.small else (TASKS, ARRIVALS)
    urgent = shapes.urgent()
    found: dict[str, Any] = {}
    for count in COUNTS:
        rows = shapes.many(ROWS * count, tasks // (ROWS * count))
        wanted = [known[name] for name in SHAPES]
        with Stack(shapes.files_of([*wanted, rows, urgent]), concurrency=count) as stack:
            _, figures = throughput.on_stack(stack, wanted, options)
            wait_ms, during = _waits(stack, rows, urgent, arrivals)
        found[str(count)] = figures | {"wait_ms": wait_ms, "arrived_while_busy": during}
        options.say(
            f"{count} pool process(es): another DAG's task waits {wait_ms} ms; {during} of {arrivals} arrived in the middle"
        )
    return {"children": found}


def _waits(stack: Stack, rows: Shape, urgent: Shape, arrivals: int) -> tuple[dict[str, float], int]:
    """The waits, and how many arrived while all rows were running."""
    stack.wait_closed(stack.trigger(urgent.dag_ids))  # warm-up
    row_runs = stack.trigger(rows.dag_ids)
    arrived: list[int] = []
    during = 0
    for _ in range(arrivals):
        arrived += stack.trigger(urgent.dag_ids)
        during += stack.rows(RUNNING, (row_runs,))[0][0] == len(row_runs)
        time.sleep(PAUSE_S)
    stack.wait_closed([*arrived, *row_runs])
    return quantiles([wait for (wait,) in stack.rows(WAITS, (arrived,))]), during
