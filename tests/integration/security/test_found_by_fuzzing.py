"""Hostile input: a short part of `make fuzz`, the defects that it found, and values in rows that a worker may write."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fuzz import broker, strategies
from fuzz.areas import AREAS, Area, Ground
from fuzz.run import Result, feed
from fuzz.stack import GOOD, samples
from support.scenario import Scenario, chain
from support.stacks import StackFactory
from support.waiting import eventually

from paceline.authoring import json_schema, xcom
from paceline.exceptions import PacelineError, ParamError, XComError
from scheduler.cli import paceline
from scheduler.dagfiles import fork_server
from scheduler.services.loop import SchedulerLoop
from scheduler.settings import Settings
from scheduler.settings.model import shown
from scheduler.store.db import roles
from scheduler.store.db.database import transact
from scheduler.store.read import reads
from scheduler.store.runs import manual_runs

from .conftest import ROLE, as_role


@pytest.fixture
def scenario(settings: Settings) -> Iterator[Scenario]:
    scenario = Scenario(settings)
    scenario.add(chain("c", 1))
    yield scenario
    scenario.close()


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"a": value}


def test_a_conf_that_no_worker_could_read_is_refused(scenario: Scenario) -> None:
    with pytest.raises(ParamError, match="nested more than 100 levels deep"):
        transact(scenario.engine, manual_runs.trigger, "c", conf=nested(950))
    transact(scenario.engine, manual_runs.trigger, "c", conf=nested(json_schema.MAX_DEPTH - 2))


def test_so_is_an_xcom_and_a_dag(settings: Settings) -> None:
    with pytest.raises(XComError, match="nested too deeply"):
        xcom.encode(nested(950), 10**6)
    itself: list[Any] = []
    itself += [itself, itself]
    assert json_schema.is_too_deep(itself)
    (settings.dags_folder / "deep.py").write_text(
        "from paceline import DAG, Param\nvalue = 1\nfor _ in range(300):\n    value = [value]\n"
        "with DAG('d', schedule=None, params={'p': value}):\n    pass\n"
    )
    work = fork_server.Work(settings.dags_folder, settings.core, settings.scheduler)
    assert "nested more than 100 deep" in fork_server.parse("deep.py", work)["problem"]["message"]


@pytest.mark.parametrize("run_id", [".", "..", "...", "../x", "a/b", "a\n", "a\0", "é", "a" * 251, " "])
def test_a_run_id_that_names_another_folder_is_refused(scenario: Scenario, run_id: str) -> None:
    with pytest.raises(PacelineError, match="is not valid: use 1 to 250 letters"):
        transact(scenario.engine, manual_runs.trigger, "c", run_id=run_id)


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_value_that_the_database_cannot_store_is_named(scenario: Scenario, text: str) -> None:
    with pytest.raises(PacelineError, match="NUL character or half of a surrogate"):
        transact(scenario.engine, reads.dag, text)


def test_a_password_in_the_wrong_setting_is_masked() -> None:
    assert shown("core.parallelism", "postgresql://ann:Sesame@h/d") == "postgresql://ann:***@h/d"
    assert shown("core.parallelism", "ann:Sesame@h") == "ann:***@h"


CASES = {
    "ids": 100, "conf": 40, "messages": 300, "wake-ups": 200, "answers": 400, "callbacks": 8, "remote control": 300,
    "environments": 200, "toml": 150, "arguments": 150, "files": 80,
}  # fmt: skip


@pytest.fixture
def ground(settings: Settings, tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(settings, tmp_path)
    yield ground
    ground.close()


@pytest.mark.long
@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_nothing_but_a_sentence_comes_of(area: Area, ground: Ground) -> None:
    result = Result()

    feed(area, ground, CASES[area.name], seed=4, deadline=float("inf"), result=result)

    assert result.failures == {}
    assert result.cases[area.name] >= CASES[area.name] / 2


@pytest.mark.long
def test_processes_survive_and_work_with_any_garbage_in_redis(stack_factory: StackFactory) -> None:
    stack = stack_factory(dags={"good.py": GOOD}, schedulers=1, workers=[("default", 2)], waiters=1)
    eventually(lambda: stack.json("dags", "list"), timeout=120, message=stack.logs)

    count = broker.rounds(
        stack,
        seed=4,
        garbage=[member for members in samples(strategies.wakeups, 40) for member in members],
        commands=samples(strategies.commands, 100),
        kinds=[None, None],
    )

    assert count > 150


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
def beside_a_worker(settings: Settings, engine: Any, role: str) -> Iterator[Scenario]:
    transact(engine, roles.grant_worker, ROLE)
    beside_a_worker = Scenario(settings)
    beside_a_worker.add(chain("d", 2))
    beside_a_worker.add(chain("good", 2))
    yield beside_a_worker
    beside_a_worker.close()


@pytest.mark.long
def test_after_hostile_writes_of_a_worker_processes_start_runs_continue_and_commands_print_one_sentence(
    beside_a_worker: Scenario, role: str, settings: Settings
) -> None:
    environment = {"PACELINE_HOME": str(settings.home), "PACELINE_DATABASE_URL": settings.database_url,
                   "PACELINE_BROKER_URL": settings.broker_url}  # fmt: skip
    wrong = []
    for statement in HOSTILE:
        beside_a_worker.sql("delete from dag_run")
        beside_a_worker.sql("delete from process where name = 'evil'")
        beside_a_worker.trigger("d", run_id="r")
        with as_role(role) as connection, connection.cursor() as cursor:
            cursor.execute(WORKER)
            cursor.execute(statement)
        SchedulerLoop(beside_a_worker.engine, settings, name="second").close()
        run = beside_a_worker.trigger("good")
        beside_a_worker.turn()
        if beside_a_worker.states(run) != {"t000": "queued", "t001": "none"}:
            wrong.append((statement[:150], "scheduler", str(beside_a_worker.states(run))))
        for command in COMMANDS:
            done = CliRunner().invoke(paceline, command, env=environment)
            if "Unexpected" in done.output or not isinstance(done.exception, SystemExit | None) or RAW.search(done.output):
                wrong.append((statement[:150], " ".join(command), repr(done.output[-200:])))
    assert wrong == []
