"""A claim does not wait for the disk: what a worker does when a crash of PostgreSQL has undone it."""

from pathlib import Path
from typing import Any

import psycopg2
from support.waiting import eventually

WORK = """
import os, time
with DAG("d", schedule=None):
    @task(retries=1)
    def t():
        with open({ran!r}, "a") as file:
            file.write("x")
        while not os.path.exists({go!r}):
            time.sleep(0.05)
    t()
"""


def test_a_report_of_a_dispatch_whose_claim_was_undone_is_taken_and_nothing_runs_twice(bench: Any, tmp_path: Path) -> None:
    """The task ends before the next heartbeat could have asserted the claim again."""
    ran, go = tmp_path / "ran", tmp_path / "go"
    bench.worker(PACELINE_WORKER_HEARTBEAT_SEC="100", PACELINE_WORKER_HEARTBEAT_TIMEOUT="1000")
    run = bench.run(WORK.format(ran=str(ran), go=str(go)), t="running")
    eventually(ran.exists)
    (started,) = bench.scenario.rows("select started_at from task_instance where task_id = 't'")[0]
    with psycopg2.connect(bench.settings.database_url) as connection, connection.cursor() as cursor:
        cursor.execute("update task_instance set state = 'queued', started_at = null, worker = null where task_id = 't'")
    connection.close()

    go.touch()
    bench.wait(run)

    assert ran.read_text() == "x"
    assert bench.scenario.run_state(run) == "success"
    assert bench.column("t", "try_number") == 1
    assert bench.column("t", "started_at") == started
