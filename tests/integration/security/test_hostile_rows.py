"""Hostile values in rows that the worker's role may write neither prevent a start nor hide anything from people."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from support.scenario import Scenario, chain

from scheduler.cli import paceline
from scheduler.services.loop import SchedulerLoop
from scheduler.settings import Settings
from scheduler.store.db import roles
from scheduler.store.db.database import transact

from .conftest import ROLE, as_role

WORKER = (
    "insert into process (id, kind, name, host, pid, queues, concurrency, schema)"
    " values ('evil#12345678', 'worker', 'evil', 'h', 1, '{default}', 1, '0')"
)
NEW_RUN = (
    "insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, conf)"
    " select {dag_id}, 'mine', 'manual', 'queued', version_id, {at}, {conf} from dag_run where dag_id = 'd'"
)
TIMES = ["'4713-01-01 BC'", "'-infinity'", "'infinity'", "'294276-12-31'", "'9999-12-31 23:59:59-12'", "'0001-01-01+14'"]
DEEP, DEEPER, LONG = (f"'{text}'" for text in ("[" * 900 + "]" * 900, "[" * 5000 + "]" * 5000, "9" * 5000))
JSON = [DEEP, DEEPER, LONG, "'1'", "'null'", "'[null]'"]
HOSTILE = [
    *(NEW_RUN.format(dag_id="dag_id", at=at, conf="'{}'") for at in TIMES),
    *(f"update task_instance set scheduled_at = {at}, queued_at = {at}, due_at = {at}" for at in TIMES),
    *(f"update process set heartbeat_at = {at} where kind = 'worker' and id ~ 'evil'" for at in TIMES),
    *(NEW_RUN.format(dag_id="dag_id", at="now()", conf=data) for data in JSON),
    *(f"update process set settings = {data} where id = 'evil#12345678'" for data in JSON),
    *(f"update task_instance set resume = {data}" for data in JSON),
    *(f"insert into xcom (task_instance_id, key, value) select id, 'x', {data} from task_instance limit 1" for data in JSON),
    *(f"insert into task_progress (task_instance_id, try_number, progress) select id, 1, {data} from task_instance limit 1"
      for data in JSON),
    NEW_RUN.format(dag_id="E'\\x1b]0;x\\x07'", at="now()", conf="'{}'"),
    "insert into process (id, kind, name, host, pid, queues, concurrency, schema)"
    " select 'evil#1234567' || n, 'worker', 'evil', 'h', 1, '{default,NULL}', 2147483647, '0' from generate_series(1, 3) n",
    "insert into task_instance (dag_run_id, task_no, task_id, queue, pool, pool_slots)"
    " select dag_run_id, 100 + n, 'mine' || n, 'mine', 'mine', 2147483647 from task_instance, generate_series(1, 4) n"
    " where task_no = 0;"
    " update task_instance set state = 'running', started_at = now(), dispatch_id = gen_random_uuid(), worker = 'evil#12345678'"
    " where queue = 'mine'",
    "update task_instance set reason = E'\\x1b[2J', map_label = E'\\x1b[2J'",
]  # fmt: skip
COMMANDS = [
    ("runs", "list"), ("runs", "show", "d", "r"), ("runs", "show", "d", "r", "--events"), ("tasks", "list", "d", "r"),
    ("tasks", "why", "d", "r", "t000"), ("tasks", "xcoms", "d", "r", "t000"), ("workers", "list"), ("queues", "list"),
    ("dags", "list"), ("doctor",),
]  # fmt: skip
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def scenario(settings: Settings, engine: Any, role: str) -> Iterator[Scenario]:
    transact(engine, roles.grant_worker, ROLE)
    scenario = Scenario(settings)
    scenario.add(chain("d", 2))
    scenario.add(chain("good", 2))
    yield scenario
    scenario.close()


@pytest.mark.long
def test_after_hostile_writes_of_a_worker_processes_start_runs_continue_and_commands_print_one_sentence(
    scenario: Scenario, role: str, settings: Settings
) -> None:
    environment = {"PACELINE_HOME": str(settings.home), "PACELINE_DATABASE_URL": settings.database_url,
                   "PACELINE_BROKER_URL": settings.broker_url}  # fmt: skip
    wrong = []
    for statement in HOSTILE:
        scenario.sql("delete from dag_run")
        scenario.sql("delete from process where name = 'evil'")
        scenario.trigger("d", run_id="r")
        with as_role(role) as connection, connection.cursor() as cursor:
            cursor.execute(WORKER)
            cursor.execute(statement)
        SchedulerLoop(scenario.engine, settings, name="second").close()
        run = scenario.trigger("good")
        scenario.turn()
        if scenario.states(run) != {"t000": "queued", "t001": "none"}:
            wrong.append((statement[:150], "scheduler", str(scenario.states(run))))
        for command in COMMANDS:
            done = CliRunner().invoke(paceline, command, env=environment)
            if "Unexpected" in done.output or not isinstance(done.exception, SystemExit | None) or RAW.search(done.output):
                wrong.append((statement[:150], " ".join(command), repr(done.output[-200:])))
    assert wrong == []
