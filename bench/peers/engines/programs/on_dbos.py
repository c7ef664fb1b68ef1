"""DBOS: a run is a workflow with a step for each task, all in one process. `wide` runs four steps at once."""

import asyncio
import os
import time

import psycopg
from dbos import DBOS

from bench.peers.engines.programs.protocol import DATABASE_URL, WORKERS, serve

STEPS = "select count(*) from dbos.operation_outputs where function_name in ('noop', 'noop_at_once')"


@DBOS.step()
def noop() -> None:
    """A step."""


@DBOS.step()
async def noop_at_once() -> None:
    """A step of `wide`. This is faster than a workflow for each, in a queue or in a thread."""


@DBOS.workflow()
def chain(count: int) -> None:
    """Steps one after the other."""
    for _ in range(count):
        noop()


@DBOS.workflow()
async def wide(count: int) -> None:
    """A step, many steps, a step."""
    await noop_at_once()
    for first in range(0, count, WORKERS):
        await asyncio.gather(*[noop_at_once() for _ in range(min(WORKERS, count - first))])
    await noop_at_once()


def run_chain(count: int) -> float:
    """A run in this thread."""
    chain(count)
    return time.time()


def run_wide(count: int) -> float:
    """A run in an event loop."""
    asyncio.run(wide(count))
    return time.time()


def run_many(runs: int, count: int) -> float:
    """Runs at once, each in a thread of DBOS."""
    for handle in [DBOS.start_workflow(chain, count) for _ in range(runs)]:
        handle.get_result()
    return time.time()


def main() -> None:
    """Launch DBOS in this process, and serve."""
    url = os.environ[DATABASE_URL]
    url_of_sqlalchemy = url.replace("postgresql://", "postgresql+psycopg://")
    DBOS(config={"name": "bench", "system_database_url": url_of_sqlalchemy, "log_level": "WARNING"})
    DBOS.launch()
    with psycopg.connect(url, autocommit=True) as connection:
        serve(
            {"chain": run_chain, "many": run_many, "wide": run_wide},
            lambda: int(connection.execute(STEPS).fetchone()[0]),
        )
    DBOS.destroy()


if __name__ == "__main__":
    main()
