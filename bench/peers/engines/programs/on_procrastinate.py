"""procrastinate: each job of a chain defers its successor. It has no joins: the program defers the last job of `wide`."""

import os
import sys
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from bench.peers.engines.programs.protocol import DATABASE_URL, POLL_S, WORKERS, module, serve, wait_until

LIMIT_S = 300.0
OPEN = "select exists (select from procrastinate_jobs where status in ('todo', 'doing'))"
ENDED = "select extract(epoch from max(at))::float8 from procrastinate_events where type = 'succeeded'"
STEPS = "select count(*) from procrastinate_jobs where status = 'succeeded'"

app = App(connector=PsycopgConnector(conninfo=os.environ[DATABASE_URL]))


@app.task(name="hop")
async def hop(left: int) -> None:
    """A step that defers its successor."""
    if left > 1:
        await hop.defer_async(left=left - 1)


@app.task(name="noop")
async def noop() -> None:
    """A step without a successor."""


@app.task(name="fan")
async def fan(count: int) -> None:
    """A step that defers many in one statement."""
    await noop.batch_defer_async(*[{} for _ in range(count)])


def main() -> None:
    """Create the schema, start the worker, and serve."""
    with (
        psycopg.connect(os.environ[DATABASE_URL], autocommit=True) as connection,
        App(connector=SyncPsycopgConnector(conninfo=os.environ[DATABASE_URL])).open() as client,
    ):
        client.schema_manager.apply_schema()
        module(__spec__.name, "worker")

        def deferred(task: str, runs: int = 1, **arguments: Any) -> float:
            for _ in range(runs):
                client.configure_task(task).defer(**arguments)
            wait_until(lambda: not connection.execute(OPEN).fetchone()[0], "all jobs to end", LIMIT_S)
            return float(connection.execute(ENDED).fetchone()[0])

        def wide(count: int) -> float:
            deferred("fan", count=count)
            return deferred("noop")

        serve(
            {
                "chain": lambda count: deferred("hop", left=count),
                "many": lambda runs, count: deferred("hop", runs, left=count),
                "wide": wide,
            },
            lambda: int(connection.execute(STEPS).fetchone()[0]),
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        # A worker that misses a notification looks for jobs only after this time: 5 s by default.
        app.run_worker(concurrency=WORKERS, fetch_job_polling_interval=POLL_S, install_signal_handlers=False)
    else:
        main()
