"""Finishing a task costs O(its direct downstream tasks): pages touched, whatever the size of the run and of the history."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.scenario import Scenario, chain, dag
from support.servers import PostgresServer

from paceline.states import TaskState
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.store.db.prepared import Prepared
from scheduler.store.moves import prepared
from scheduler.store.worker.claims import Claim, Ending, NextInPlace
from scheduler.store.worker.hot_path import HotPath
from workers.task.follow import Follower

#: 40 % more pages than in the small case are allowed: an index of 10,000 entries has one level more, and a report of about 80
#: pages searches or changes about 30.
ALLOWED = 1.4


@pytest.fixture(scope="module", autouse=True)
def no_autovacuum(postgres_server: PostgresServer) -> Iterator[None]:
    """While autovacuum analyzes any table of the database, entries of dead rows stay in the indexes, and a report reads them."""
    postgres_server.autovacuum(on=False)
    yield
    postgres_server.autovacuum(on=True)


def fan_in(scenario: Scenario, dag_id: str, width: int) -> None:
    names = [f"m{number:05}" for number in range(width)]
    scenario.add(dag(dag_id, {**{name: [] for name in names}, "join": names}, max_active_tasks=50))
    scenario.trigger(dag_id)
    scenario.turn()


def pages(scenario: Scenario, statement: str) -> int:
    """Pages read or hit by one execution, undone afterwards."""
    hot = HotPath(scenario.settings, scenario.worker_id)
    cursor = hot._open()
    cursor.execute(f"begin; explain (analyze, buffers, format json) {statement}")
    plan: dict[str, Any] = cursor.fetchone()[0][0]["Plan"]  # type: ignore[index]
    cursor.execute("rollback")
    hot.close()
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def quoted(value: object) -> str:
    return f"'{value}'"


def execution(statement: Prepared, values: Mapping[str, object]) -> str:
    """The statement with these SQL literals as parameters; one that is not given is null."""
    return f"execute {statement.name}({', '.join(str(values.get(name, 'null')) for name in statement.parameters)})"


def cost_of_one_report(scenario: Scenario) -> tuple[int, int, int]:
    """Pages of the probe, of the report and of locking the join for one task in the middle, after some have ended."""
    messages = scenario.messages()
    for message in messages[:-1]:
        claim = scenario.claim(message)
        assert claim
        scenario.follower.report(claim, Ending(TaskState.SUCCESS))
    claim = scenario.claim(messages[-1])
    assert claim
    plan = scenario.hot.dag(claim.version_id)
    join = len(plan.tasks) - 1
    ((low, high),) = plan.upstream_ranges[join]
    values = {
        "ti_id": claim.id,
        "dag_run_id": claim.dag_run_id,
        "dispatch_id": quoted(claim.dispatch_id),
        "state": "'success'",
        "worker": quoted(scenario.worker_id),
        "version_id": claim.version_id,
        "aging": "false",
        "task_nos": f"'{{{join}}}'",
        "tasks": f"'{{{join}}}'",
        "lows": f"'{{{low}}}'",
        "highs": f"'{{{high}}}'",
        "joins": f"'{{{join}}}'",
        "map_index": -1,
        "map_indexes": "'{-1}'",
        "verdicts": "'{scheduled}'",
        "reasons": "'{because}'",
        "below_branch": "'{false}'",
        "successor": 1,
        "next_dispatch_id": quoted(uuid4()),
        "in_place_id": quoted(uuid4()),
        "line_in_place": "true",
    }
    probe = execution(prepared.UNSTARTED, values)
    report = execution(prepared.REPORT, values)
    lock = execution(prepared.LOCK_JOINS, values)
    found = pages(scenario, probe), pages(scenario, report), pages(scenario, lock)
    scenario.messages()  # of the task instances that got the slots
    return found


def report_in_fan_in(scenario: Scenario, dag_id: str, width: int) -> tuple[int, int, int]:
    """The cost of one report in a fan-in that is deleted afterwards."""
    fan_in(scenario, dag_id, width)
    cost = cost_of_one_report(scenario)
    scenario.sql("delete from dag_run")
    return cost


def test_a_fan_in_of_10000_costs_each_task_as_much_as_a_fan_in_of_100(scenario: Scenario) -> None:
    small = report_in_fan_in(scenario, "small", 120)
    fan_in(scenario, "large", 10_000)
    large = cost_of_one_report(scenario)

    assert large[0] <= small[0] * ALLOWED + 4
    assert large[1] <= small[1] * ALLOWED + 4


def test_statistics_of_an_emptied_table_mislead_no_plan(scenario: Scenario) -> None:
    small = report_in_fan_in(scenario, "small", 120)
    fan_in(scenario, "large", 10_000)
    # The result of a vacuum right after the delete: a table of many pages and no row.
    scenario.sql(
        "update pg_class set reltuples = 0, relpages = pg_relation_size(oid) / 8192 where relname like 'task\\_instance%%'"
    )
    scenario.turn()  # rescue looks after that

    large = cost_of_one_report(scenario)

    assert large[0] <= small[0] * ALLOWED + 4
    assert large[1] <= small[1] * ALLOWED + 4


def test_a_long_history_costs_nothing(scenario: Scenario) -> None:
    empty = report_in_fan_in(scenario, "d", 100)
    version = scenario.rows("select version_id from dag limit 1")[0][0]
    scenario.sql(
        """
        with old as (
            insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, started_at, ended_at)
            select 'd', 'old' || n, 'manual', 'success', %s, now(), now(), now() from generate_series(1, 300) n returning id)
        insert into task_instance (dag_run_id, task_no, task_id, state, queue, pool, ended_at)
        select old.id, n, 't' || n, 'success', 'default', 'default_pool', now() from old, generate_series(1, 300) n
        """,
        version,
    )
    scenario.trigger("d")
    scenario.turn()
    long = cost_of_one_report(scenario)

    assert long[0] <= empty[0] * ALLOWED + 4
    assert long[1] <= empty[1] * ALLOWED + 4
    assert long[2] <= empty[2] * ALLOWED + 4


def test_no_hot_statement_scans_a_table(scenario: Scenario) -> None:
    hot = HotPath(scenario.settings, scenario.worker_id)
    cursor = hot._open()
    values = {
        **dict.fromkeys(("ti_id", "dag_run_id", "version_id", "successor", "map_index", "due_in_s"), 1),
        **dict.fromkeys(("dispatch_id", "next_dispatch_id", "in_place_id"), quoted(uuid4())),
        **dict.fromkeys(("tasks", "task_nos", "map_indexes", "joins"), "'{1}'"),
        **{"lows": "'{0}'", "highs": "'{5}'", "verdicts": "'{scheduled}'", "reasons": "'{r}'", "below_branch": "'{true}'"},
        **{"aging": "false", "line_in_place": "true", "resume": "'{}'", "kwargs": "'{}'"},
        **dict.fromkeys(("state", "worker", "classpath"), "'success'"),
    }
    assert prepared.STATEMENTS.count("\nprepare ") == len(prepared.ALL)
    for statement in prepared.ALL.values():
        name = statement.name
        cursor.execute(f"explain {execution(statement, {} if name in {'hold_steps', 'steps'} else values)}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "Seq Scan" not in plan, f"{name}:\n{plan}"
        # Read without its pool, or by something that is no condition of the index, it would be the whole line.
        lines = plan.count("using task_instance_waiting")
        assert lines == len(re.findall(r"using task_instance_waiting on [^\n]*\n *Index Cond: \(pool = ", plan)), f"{name}:\n{plan}"
    hot.close()


def test_rows_that_have_left_the_partial_indexes_cost_nothing(scenario: Scenario) -> None:
    before = report_in_fan_in(scenario, "d", 100)
    version = scenario.rows("select version_id from dag limit 1")[0][0]
    scenario.sql(
        """
        with old as (
            insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, started_at, ended_at)
            values ('d', 'old', 'manual', 'success', %s, now(), now(), now()) returning id)
        insert into task_instance (dag_run_id, task_no, task_id, state, queue, pool, scheduled_at)
        select old.id, n, 't' || n, 'scheduled', 'default', 'default_pool', now() from old, generate_series(1, 20000) n
        """,
        version,
    )
    for state in ("queued", "running", "success"):
        scenario.sql(
            "update task_instance set state = %s, queued_at = now(), queued_by = 's', dispatch_id = gen_random_uuid(),"
            " started_at = now(), worker = 'w', ended_at = now()",
            state,
        )
    # To the planner the partial indexes are empty now, and cheaper than the primary key.
    scenario.sql("analyze task_instance")
    scenario.trigger("d")
    scenario.turn()
    after = cost_of_one_report(scenario)

    assert after[0] <= before[0] * ALLOWED + 8
    # The index of waiting rows is sorted, so its pages of ended entries lie before the first that is not, until a vacuum.
    line = scenario.rows("select pg_relation_size('task_instance_waiting') / 8192")[0][0]
    assert after[1] <= before[1] * ALLOWED + 8 + line


class Counted(HotPath):
    """Counts the messages to PostgreSQL, each of which is one round trip."""

    sent = 0

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        self.sent += 1
        return super().run(statement, parameters)


def test_a_claim_and_a_report_with_their_locks_are_one_message_each(scenario: Scenario) -> None:
    scenario.start(dag("d", {"a": [], "b": ["a"]}))
    with closing(Counted(scenario.settings, scenario.worker_id)) as hot:
        (message,) = scenario.messages()
        claim = hot.claim(*message)
        assert claim is not None and hot.sent == 1
        hot.dag(claim.version_id)  # read once in a process
        hot.sent = 0
        follower = Follower(hot, Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True)
        assert follower.report(claim, Ending(TaskState.SUCCESS)).is_stored
        assert (hot.sent, scenario.states()) == (1, {"a": "success", "b": "queued"})


class Named(HotPath):
    """Lists the reports that it sends: "step" or "report"."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reports: list[str] = []

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        self.reports += re.findall(r"execute (step|report)\(", statement)
        return super().run(statement, parameters)


def ride(scenario: Scenario, hot: HotPath, claim: Claim, *, tasks: int) -> Claim:
    """Report `claim` and its successors in place, each with a result."""
    follower = Follower(hot, Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True)
    for _ in range(tasks):
        reported = follower.report(claim, Ending(TaskState.SUCCESS, result="1"), NextInPlace(str(uuid4())))
        assert reported.is_stored and reported.continues is not None
        claim = reported.continues
    return claim


def test_a_chain_in_place_goes_on_step_by_step(scenario: Scenario) -> None:
    scenario.start(chain("d", 6))
    scenario.sql("update pool set passes_slots_on = true")
    with closing(Named(scenario.settings, scenario.worker_id)) as hot:
        claim = hot.claim(*scenario.messages()[0])
        assert claim is not None
        last = ride(scenario, hot, claim, tasks=5)

        assert hot.reports == ["step"] * 5
        assert (last.task_id, last.task_no, last.try_number) == ("t005", 5, 1)
        assert scenario.states() == {f"t{at:03}": "success" for at in range(5)} | {"t005": "running"}
        assert scenario.rows("select count(*) from xcom")[0][0] == 5


def test_a_step_that_cannot_go_on_stores_nothing_and_the_next_reports_do_not_try_it(scenario: Scenario) -> None:
    """A waiting task of the same run outranks the successor: it gets the slots."""
    scenario.start(dag("d", {"a": [], "b": ["a"], "c": ["b"], "e": []}, options={"e": {"priority_weight": 9}}))
    scenario.sql("update pool set passes_slots_on = true")
    by_name = {scenario.rows("select task_id from task_instance where id = %s", one[0])[0][0]: one for one in scenario.messages()}
    scenario.sql("update task_instance set state = 'scheduled', dispatch_id = null where task_id = 'e'")
    with closing(Named(scenario.settings, scenario.worker_id)) as hot:
        claim = hot.claim(*by_name["a"])
        assert claim is not None
        following = ride(scenario, hot, claim, tasks=1)

        assert hot.reports == ["step", "report"]
        assert following.task_id == "e"
        assert scenario.states() == {"a": "success", "b": "scheduled", "c": "none", "e": "running"}
        assert scenario.rows("select count(*) from xcom")[0][0] == 1


@pytest.mark.skipif(shutil.which("psql") is None, reason="needs the client of PostgreSQL")
@pytest.mark.parametrize("name", ["claim", "report", "joins", "suspend"])
def test_psql_takes_a_file_of_statements_as_it_is(scenario: Scenario, name: str) -> None:
    commands = [
        f"explain {execution(statement, {})}" for statement in prepared.read(name) if statement.name not in {"step", "steps"}
    ]
    file = Path(prepared.__file__).with_name(f"{name}.sql")
    psql = ["psql", "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-f", str(file), *(part for one in commands for part in ("-c", one))]

    done = subprocess.run([*psql, scenario.settings.database_url], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("QUERY PLAN") == len(commands)
