"""A claim does not wait for the disk: what a worker does when a crash of PostgreSQL has undone it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from support.scenario import Scenario, chain
from support.waiting import eventually

from scheduler.settings import Settings
from scheduler.store.hot import HotPath

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


def test_what_was_queued_before_a_start_of_postgresql_is_claimed_only_once_workers_have_asserted_theirs(scenario: Scenario) -> None:
    """A second message of a dispatch whose claim was undone, delivered before its worker could say that it runs it."""
    scenario.add(chain("c", 1))
    scenario.trigger("c", run_id="r")
    scenario.turn()
    (message,) = scenario.messages()
    scenario.sql("update task_instance set queued_at = pg_postmaster_start_time() - interval '1 ms'")

    assert heartbeat_timeout(scenario, 1e6).claim(*message) is None
    assert heartbeat_timeout(scenario, 0.001).claim(*message) is not None


def test_what_was_queued_since_a_start_of_postgresql_is_claimed_at_once(scenario: Scenario) -> None:
    scenario.add(chain("c", 1))
    scenario.trigger("c", run_id="r")
    scenario.turn()
    (message,) = scenario.messages()

    assert heartbeat_timeout(scenario, 1e6).claim(*message) is not None


def heartbeat_timeout(scenario: Scenario, seconds: float) -> HotPath:
    """The hot path of a worker with this setting."""
    worker = scenario.settings.worker.model_copy(update={"heartbeat_timeout": seconds})
    scenario.hot.close()
    scenario.hot._settings = scenario.settings.model_copy(update={"worker": worker})
    return scenario.hot


@pytest.fixture
def scenario(settings: Settings) -> Iterator[Scenario]:
    made = Scenario(settings)
    yield made
    made.close()
