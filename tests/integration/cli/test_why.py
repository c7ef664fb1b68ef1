"""`tasks why` on a real database: the facts behind each sentence belong to this task instance and to no other.

The REST API, from which the pages have them, must answer each question with the same sentences.
"""

import re
from typing import Any

import pytest
from support.rest import Rest
from support.scenario import Scenario, dag

from paceline.states import Branched, TaskState
from scheduler.store.worker.claims import Ending

from .conftest import Cli

NOTHING = "Nothing blocks it: a scheduler moves it in its next pass, within about a second."


class Ask:
    """Explains tasks of the run `one`, whose states the test sets."""

    def __init__(self, cli: Cli, rest: Rest, scenario: Scenario) -> None:
        self._cli = cli
        self._rest = rest
        self.scenario = scenario

    def __call__(self, task_id: str, *options: str, dag_id: str = "etl", run_id: str = "one") -> list[str]:
        answer = self._cli.json("tasks", "why", dag_id, run_id, task_id, *options)
        sentences: list[str] = answer["waiting_for"]
        found = self._rest.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/why", map_index=answer["map_index"])
        # The request to the API is about one instance, so the answer names no other, and it comes a moment later.
        wanted = [sentence for sentence in sentences if "; this is about index " not in sentence]
        assert _without_ages(found["waiting_for"]) == _without_ages(wanted)
        return sentences

    def run(self, run: int, state: str) -> None:
        self.scenario.sql("update dag_run set state = %s, started_at = clock_timestamp() where id = %s", state, run)

    def set(self, run: int, task_id: str, state: str | None, **columns: Any) -> None:
        """Put a task instance into a state, with the columns that it needs."""
        values = "".join(f", {name} = %({name})s" for name in columns)
        with self.scenario.engine.begin() as connection:
            connection.exec_driver_sql(
                f"""
                update task_instance set state = %(state)s, scheduled_at = now(), queued_at = now(), started_at = now(),
                       ended_at = now(), queued_by = 's', dispatch_id = gen_random_uuid(), due_at = now() + interval '1 hour',
                       worker = %(worker)s, requested_state = 'none', resume = '{{}}'{values}
                 where dag_run_id = %(run)s and task_id = %(task)s
                """,
                columns | {"run": run, "task": task_id, "state": state, "worker": self.scenario.worker_id},
            )


def _without_ages(sentences: list[str]) -> list[str]:
    return [re.sub(r"\d+ s ago", "some s ago", sentence) for sentence in sentences]


@pytest.fixture
def ask(cli: Cli, rest: Rest, scenario: Scenario) -> Ask:
    return Ask(cli, rest, scenario)


@pytest.fixture
def run(ask: Ask) -> int:
    """A running run `one` of `etl`: two extracts, then load."""
    ask.scenario.add(dag("etl", {"left": [], "right": [], "load": ["left", "right"]}, max_active_tasks=2, max_active_runs=1))
    run = ask.scenario.trigger("etl", run_id="one")
    ask.run(run, "running")
    return run


def test_upstream(ask: Ask, run: int) -> None:
    ask.set(run, "left", "success")
    ask.set(run, "right", "running")

    assert ask("load") == ["It waits for upstream task right (running); its trigger rule is all_success."]
    ask.set(run, "right", "success")
    assert ask("load") == [NOTHING]


def test_text_is_the_sentences_alone(cli: Cli, ask: Ask, run: int) -> None:
    done = cli("tasks", "why", "etl", "one", "load")

    assert done.exit_code == 0
    assert done.stdout == "It waits for upstream tasks left (none), right (none); its trigger rule is all_success.\n"


def test_the_json_has_the_state(cli: Cli, ask: Ask, run: int) -> None:
    ask.set(run, "left", "scheduled")

    answer = cli.json("tasks", "why", "etl", "one", "left")
    assert [step["state"] for step in answer.pop("history")] == ["scheduled"]
    assert answer == {"state": "scheduled", "map_index": -1, "waiting_for": [NOTHING]}
    assert cli.json("tasks", "why", "etl", "one", "right")["state"] is None


def test_a_full_pool_and_the_tasks_that_hold_it(ask: Ask, run: int) -> None:
    ask.scenario.pool("db", 3)
    ask.set(run, "left", "running", pool="db", pool_slots=2)
    ask.set(run, "right", "scheduled", pool="db", pool_slots=2)

    assert ask("right") == [
        "Pool 'db' has 1 free, and it needs 2: 2 of 3 slots are in use, held by etl.left of run 'one' (2 slots)."
    ]


def test_deferred_task_instances_hold_slots_if_the_pool_counts_them(ask: Ask, run: int) -> None:
    ask.scenario.pool("db", 1)
    ask.set(run, "left", "deferred", pool="db")
    ask.set(run, "right", "scheduled", pool="db")

    assert ask("right") == [NOTHING]
    ask.scenario.sql("update pool set include_deferred = true where name = 'db'")
    assert ask("right") == ["Pool 'db' is full: 1 of 1 slot are in use, held by etl.left of run 'one'."]


def test_a_missing_pool(ask: Ask, run: int) -> None:
    ask.set(run, "left", "scheduled", pool="nowhere")

    assert ask("left") == ["There is no pool 'nowhere': create it with `paceline pools set nowhere SLOTS`."]


def test_a_task_instance_that_holds_its_place_in_line(ask: Ask, run: int) -> None:
    ask.scenario.pool("db", 3)
    other = ask.scenario.trigger("pair", run_id="one")
    ask.run(other, "running")
    ask.set(other, "first", "running", pool="db", pool_slots=2)
    ask.set(run, "left", "scheduled", pool="db", pool_slots=3, rank=5)
    ask.set(run, "right", "scheduled", pool="db", rank=1)

    assert ask("right") == [
        "etl.left of run 'one' ranks higher, needs 3 slots of pool 'db' and holds its place in line while 1 are free "
        "(scheduler.pool_reservation)."
    ]


def test_with_aging_the_older_task_instance_comes_first(cli: Cli, ask: Ask, run: int) -> None:
    ask.scenario.pool("db", 3)
    ask.set(run, "left", "scheduled", pool="db", rank=5)
    ask.set(run, "right", "scheduled", pool="db", rank=1)
    ask.scenario.sql("update task_instance set scheduled_at = now() - interval '1 hour' where task_id = 'right'")
    first = "1 task instance of higher rank waits in pool 'db' before it."

    assert (ask("left"), ask("right")) == ([NOTHING], [first])
    aging = {"PACELINE_SCHEDULER_PRIORITY_AGING": "60"}
    assert cli("tasks", "why", "etl", "one", "left", **aging).stdout.strip() == first
    assert cli("tasks", "why", "etl", "one", "right", **aging).stdout.strip() == NOTHING


def test_limits(ask: Ask, run: int) -> None:
    ask.set(run, "left", "running")
    ask.set(run, "right", "queued")
    ask.set(run, "load", "scheduled", max_active_tis_per_dag=1)

    assert ask("load") == ["The limit max_active_tasks is reached: 2 of 2."]

    other = ask.scenario.trigger("etl", run_id="two")
    ask.run(other, "running")
    ask.set(other, "load", "deferred")
    ask.set(run, "right", "success")

    assert ask("load") == ["The limit max_active_tis_per_dag is reached: 1 of 1."]


def test_a_queue_without_a_worker(ask: Ask, run: int) -> None:
    ask.set(run, "left", "queued", queue="spark", dispatched_at="2025-01-01T00:00:00Z")

    assert ask("left")[1:] == ["No live worker listens to queue 'spark': start one with `paceline worker -q spark`."]
    assert ask("left")[0].startswith("No worker has taken its message from queue 'spark' yet")


def test_a_silent_worker_is_no_worker(ask: Ask, run: int) -> None:
    ask.set(run, "left", "running")
    assert ask("left")[0].endswith(f"try 0 of 1, on worker {ask.scenario.worker_id}.")

    ask.scenario.sql("update process set heartbeat_at = now() - interval '1 hour' where kind = 'worker'")

    assert "sends no heartbeats" in ask("left")[0]


def test_not_due_yet(ask: Ask, run: int) -> None:
    ask.set(run, "left", "up_for_retry", try_number=1, max_tries=1, reason="exit code 1")

    (sentence,) = ask("left")

    assert sentence.startswith("Try 1 of 2 failed (exit code 1); the next one is due at ")


def test_a_trigger(ask: Ask, run: int) -> None:
    ask.set(run, "left", "deferred")
    ask.scenario.sql("update task_instance set due_at = null")
    ask.scenario.sql(
        "insert into deferral (task_instance_id, dispatch_id, classpath) select id, dispatch_id, 'a.Moment' from task_instance"
        " where dag_run_id = %s and task_id = 'left'",
        run,
    )

    assert ask("left") == [
        "It waits for its trigger a.Moment.",
        "No waiter is alive to await triggers: start one with `paceline waiter`.",
    ]


def test_a_run_that_may_not_start_yet(ask: Ask, run: int) -> None:
    ask.scenario.trigger("etl", run_id="two")
    ask.scenario.trigger("etl", run_id="three")

    assert ask("left", run_id="three") == [
        "Its run has not started: the DAG has 1 running run and max_active_runs is 1. 1 queued run comes before it."
    ]


def test_a_run_of_a_backfill(ask: Ask, run: int) -> None:
    two = ask.scenario.trigger("etl", run_id="two")
    with ask.scenario.engine.begin() as connection:
        number = connection.exec_driver_sql(
            "insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess, is_paused)"
            " select 'etl', version_id, now(), now(), 1, 'none', true from dag_run where id = %s returning id",
            (two,),
        ).scalar_one()
    ask.scenario.sql("update dag_run set backfill_id = %s, backfill_ordinal = id where id = %s", number, two)

    assert ask("left", run_id="two") == [f"Backfill {number} is paused: `paceline backfills resume {number}` lets its runs start."]

    three = ask.scenario.trigger("etl", run_id="three")
    ask.scenario.sql("update dag_run set backfill_id = %s, backfill_ordinal = 1 where id = %s", number, three)
    ask.scenario.sql("update backfill set is_paused = false")
    ask.run(two, "running")

    assert ask("left", run_id="three") == [
        f"Its run has not started: backfill {number} has 1 running run and max_active_runs is 1."
    ]


def test_the_home_page_names_the_limit_of_the_dag_or_of_the_backfill(ask: Ask, rest: Rest, run: int) -> None:
    two, three, _ = (ask.scenario.trigger("etl", run_id=name) for name in ("two", "three", "four"))
    ((number,),) = ask.scenario.rows(
        "insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess)"
        " select 'etl', version_id, now(), now(), 2, 'none' from dag_run where id = %s returning id",
        two,
    )
    ask.scenario.sql("update dag_run set backfill_id = %s, backfill_ordinal = id where id in (%s, %s)", number, two, three)

    def reasons() -> set[tuple[int, str]]:
        return {(row["count"], row["reason"]) for row in rest.get("/home")["waiting"] if row["pool"] is None}

    of_dag = (1, "They have not started: the DAG has 1 running run and max_active_runs is 1.")
    assert reasons() == {of_dag, (2, "A scheduler starts them soon.")}
    ask.scenario.sql("update backfill set max_active_runs = 1")
    ask.run(two, "running")
    assert reasons() == {of_dag, (1, f"They have not started: backfill {number} has 1 running run and max_active_runs is 1.")}
    ask.scenario.sql("update backfill set is_paused = true")
    assert reasons() == {of_dag, (1, f"Backfill {number} is paused: `paceline backfills resume {number}` lets its runs start.")}


def test_the_home_page_says_why_task_instances_wait_as_why_does(ask: Ask, rest: Rest, run: int) -> None:
    def reasons() -> set[str]:
        return {row["reason"] for row in rest.get("/home")["waiting"] if row["pool"] is not None}

    ask.set(run, "left", "scheduled", pool="nowhere")
    assert reasons() == {"There is no pool 'nowhere': create it with `paceline pools set nowhere SLOTS`."}
    ask.set(run, "left", "scheduled", pool="default_pool", queue="spark")
    assert reasons() == {"No live worker listens to queue 'spark': start one with `paceline worker -q spark`."}
    ask.scenario.sql("update pool set slots = 0 where name = 'default_pool'")
    ask.set(run, "left", "scheduled", queue="default")
    assert reasons() == {"It needs 1 slot and pool 'default_pool' has 0 in all, so it can never run: enlarge the pool."}


def test_conditions_that_hold_back_the_whole_dag(ask: Ask, run: int) -> None:
    ask.scenario.sql("update dag_schedule set is_paused = true where dag_id = 'etl'")
    ask.scenario.sql("insert into import_error (file, line, message) values ('etl.py', 7, 'NameError: x')")
    ask.scenario.sql("update process set stopped_at = now() where kind = 'scheduler'")

    assert ask("left") == [
        "DAG 'etl' is paused: `paceline dags unpause etl` resumes it.",
        "The DAG's file etl.py, line 7 has an import error, so the last version that loaded is used: NameError: x.",
        "No scheduler is alive: start one with `paceline scheduler`.",
    ]


def test_the_past(ask: Ask) -> None:
    ask.scenario.add(dag("daily", {"step": []}, task={"depends_on_past": True}))
    first, second = (ask.scenario.trigger("daily", run_id=name) for name in ("one", "two"))
    ask.run(first, "running")
    ask.run(second, "running")
    ask.set(first, "step", "failed")

    assert ask("step", dag_id="daily", run_id="two") == [
        "It waits for the previous run: depends_on_past: step of the previous run, one, is failed."
    ]
    ask.set(first, "step", "success")
    assert ask("step", dag_id="daily", run_id="two") == [NOTHING]


def test_a_mapped_task_as_a_whole_and_one_instance(ask: Ask, run: int) -> None:
    ask.set(run, "left", "success", map_index=0)
    with ask.scenario.engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into task_instance (dag_run_id, task_id, task_no, map_index, queue, pool)"
            " select dag_run_id, task_id, task_no, 1, queue, pool from task_instance where dag_run_id = %s and map_index = 0",
            (run,),
        )

    assert ask("left") == ["It has 2 instances (1 none, 1 success); this is about index 1.", NOTHING]
    assert ask("left", "--map-index", "0")[0].startswith("It has ended as success")
    assert ask("load") == [
        "It waits for upstream tasks left (1 of 2 instances ended: 1 none, 1 success), right (none); "
        "its trigger rule is all_success."
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope", "one", "left"), "There is no DAG 'nope'"),
        (("etl", "nope", "left"), "'nope'"),
        (("etl", "one", "lef"), "did you mean 'left'?"),
        (("etl", "one", "left", "--map-index", "4"), "is not mapped, or not expanded yet: remove --map-index"),
    ],
)
def test_a_missing_task_instance(cli: Cli, run: int, arguments: tuple[str, ...], message: str) -> None:
    done = cli("tasks", "why", *arguments)

    assert done.exit_code == 3
    assert message in done.stderr


def test_a_task_in_a_loop_waits_for_the_iteration_before(ask: Ask) -> None:
    in_loop = {
        "expand": {"kind": "product", "inputs": [{"literal": 3}]},
        "mapped_group": "loop",
        "group": "loop",
        "loop_gate": "gate",
    }
    options = {"work": in_loop, "gate": {**in_loop, "branches": True}}
    ask.scenario.add(dag("looping", {"before": [], "work": ["before"], "gate": ["work"]}, options=options))
    run = ask.scenario.trigger("looping", run_id="one")
    for _ in range(20):
        if ask.scenario.states(run).get("work[0]") == "success":
            break
        ask.scenario.turn()
        ask.scenario.work()

    (waits,) = ask("work", "--map-index", "1", dag_id="looping")
    assert re.fullmatch(r"It is in iteration 2 of its loop and waits for gate\[0\] \(\w+\), which ends iteration 1\.", waits)

    ask.scenario.run_to_end(outcome=lambda claim: Ending(TaskState.SUCCESS, skip=(Branched.LOOP_STOP,)))
    assert ask("work", "--map-index", "1", dag_id="looping") == ["It is removed: the loop ended with iteration 1."]
