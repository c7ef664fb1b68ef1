"""Absurd: a run is a task with many steps. In `wide`, a parent spawns many tasks between two steps."""

import os
import sys
import time
from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.peers.engines.programs.protocol import DATABASE_URL, POLL_S, WORKERS, module, serve, wait_until

QUEUE, PARENTS = "default", "parents"
LIMIT_S = 300.0
OPEN = "select exists (select from absurd.r_default where state in ('pending', 'running', 'sleeping'))"
ENDED = """
    select extract(epoch from greatest((select max(completed_at) from absurd.r_default),
                                       (select max(completed_at) from absurd.r_parents)))::float8
"""
STEPS = """
    select (select count(*) from absurd.c_default)
         + (select count(*) from absurd.t_default where task_name = 'single' and state = 'completed')
         + (select count(*) from absurd.c_parents where checkpoint_name in ('first', 'last'))
"""


def client(queue: str) -> Absurd:
    """A client of a queue that knows all tasks, with a connection of its own."""
    absurd = Absurd(os.environ[DATABASE_URL], queue_name=queue)

    @absurd.register_task("steps", queue=QUEUE)
    def steps(parameters: Any, context: Any) -> None:
        for _ in range(parameters["count"]):
            context.step("noop", lambda: None)

    @absurd.register_task("single", queue=QUEUE)
    def single(parameters: Any, context: Any) -> None:
        pass

    @absurd.register_task("wide", queue=PARENTS)
    def wide(parameters: Any, context: Any) -> None:
        context.step("first", lambda: None)
        for _ in range(parameters["count"]):
            absurd.spawn("single", {}, queue=QUEUE)
        _wait()
        context.step("last", lambda: None)

    def _wait() -> None:
        with psycopg.connect(os.environ[DATABASE_URL], autocommit=True) as connection:
            wait_until(lambda: not connection.execute(OPEN).fetchone()[0], "all tasks to end", LIMIT_S)

    return absurd


def main() -> None:
    """Create the schema, start the workers, and serve. The parents of `wide` run in this process."""
    with psycopg.connect(os.environ[DATABASE_URL], autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
        absurd, parents = client(QUEUE), client(PARENTS)
        for queue in (QUEUE, PARENTS):
            absurd.create_queue(queue)
        for _ in range(WORKERS):
            module(__spec__.name, "worker")

        def spawned(task: str, count: int, runs: int = 1) -> float:
            for _ in range(runs):
                absurd.spawn(task, {"count": count})
            wait_until(lambda: not connection.execute(OPEN).fetchone()[0], "all tasks to end", LIMIT_S)
            return float(connection.execute(ENDED).fetchone()[0])

        def wide(count: int) -> float:
            parents.spawn("wide", {"count": count})
            parents.work_batch()
            return time.time()

        serve(
            {
                "chain": lambda count: spawned("steps", count),
                "many": lambda runs, count: spawned("steps", count, runs),
                "wide": wide,
            },
            lambda: int(connection.execute(STEPS).fetchone()[0]),
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        client(QUEUE).start_worker(poll_interval=POLL_S, concurrency=1)
    else:
        main()
