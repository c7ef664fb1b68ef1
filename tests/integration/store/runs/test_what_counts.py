"""docs/reference/what-counts.md against the product: what each state, and a missing logical date, mean to each rule."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.scenario import Scenario, dag
from support.tries import NOON, Ti, run

from paceline import DAG
from paceline.authoring.triggers import Target
from paceline.exceptions import ExternalTaskFailedError, FailTask
from paceline.operators import TriggerDagRunOperator
from paceline.sensors import ExternalTaskSensor
from paceline.states import Before, TaskState
from scheduler.deciding import rules
from scheduler.deciding.evaluate import run_state
from scheduler.store.actions import clear, mark
from scheduler.store.dags import dags
from scheduler.store.db.database import rehearse, transact
from scheduler.store.db.rows import EngineReader
from scheduler.store.runs import deadlines, run_facts, selection
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker import external_runs

S = TaskState
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "what-counts.md"
#: The states of each column.
COLUMNS = {
    "success": [S.SUCCESS],
    "skipped": [S.SKIPPED],
    "failed": [S.FAILED],
    "upstream_failed": [S.UPSTREAM_FAILED],
    "open": [S.NONE, S.RUNNING, S.UP_FOR_RETRY, S.DEFERRED],
    "removed": [S.REMOVED],
}
RUN_COLUMNS = {"success": ["success"], "failed": ["failed"], "open": ["queued", "running"]}


def row(start: str) -> dict[str, str]:
    """The cells of the row of the page that starts with this, by column."""
    lines = PAGE.read_text(encoding="utf-8").partition("## Runs that retention")[0].splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith(f"| {start}")]
    head = max(number for number, line in enumerate(lines[:at]) if line.startswith("| |"))
    cells = [[cell.strip() for cell in lines[number].split("|")[2:-1]] for number in (head, at)]
    return dict(zip(*cells, strict=True))


def check(start: str, meaning: Callable[[Any], str], columns: dict[str, list[Any]] = COLUMNS) -> None:  # type: ignore[assignment]
    """Every state of each column has the meaning that its cell states."""
    cells = row(start)
    found = {name: {meaning(state) for state in states} for name, states in columns.items()}
    assert found == {name: {cells[name]} for name in columns}


def days(scenario: Scenario, dag_id: str, count: int, *, dated: bool = True) -> list[int]:
    """Runs on successive days: by their logical date, or only by run_after, then made in the reverse order."""
    made = {}
    for day in range(1, count + 1) if dated else range(count, 0, -1):
        at = datetime(2026, 1, day, tzinfo=UTC)
        dates = {"logical_date": at} if dated else {"dated": False, "run_after": at}
        made[day] = scenario.trigger(dag_id, run_id=f"r{day}", **dates)
    return [made[day] for day in sorted(made)]


WAITING = dag("d", {"a": [], "b": ["a"]}, options={"a": {"depends_on_past": True, "wait_for_downstream": True}})


def with_past(scenario: Scenario, states: dict[str, str], earlier: dict[str, str] | None = None) -> dict[int, str]:
    """Why tasks of the third run wait, if the second run has these states, and the first one `earlier`."""
    scenario.add(WAITING)
    runs = days(scenario, "d", 3)
    for which, given in zip(runs, (earlier or {}, states), strict=False):
        for task_id, state in given.items():
            place(scenario, which, task_id, S(state))
    before = transact(scenario.engine, run_facts.before, runs[2], rules.past_relevant(WAITING), catchup=False)
    return rules.past_waits(WAITING, before)


@pytest.mark.parametrize(("rule", "task_id"), [("`depends_on_past`", "a"), ("`wait_for_downstream`", "b")])
def test_states_of_the_previous_run(rule: str, task_id: str) -> None:
    def meaning(state: S) -> str:
        def waits(*instances: S) -> bool:
            states = {"a": [S.SUCCESS], "b": [S.SUCCESS]} | {task_id: [one for one in instances if one is not S.REMOVED]}
            return bool(rules.past_waits(WAITING, Before(run_id="r", states={name: of for name, of in states.items() if of})))

        if state is S.REMOVED:
            return "counted" if waits(state) or waits(state, S.SUCCESS) or not waits(state, S.FAILED) else "not counted"
        return "waits" if waits(state) else "runs"

    check(rule, meaning)


@pytest.mark.parametrize(
    ("states", "earlier", "reason"),
    [
        ({"a": "success", "b": "removed"}, {"a": "success", "b": "failed"}, None),
        ({"a": "removed", "b": "removed"}, {"a": "success", "b": "success"}, None),
        ({"a": "removed", "b": "success"}, {"a": "failed", "b": "success"}, "depends_on_past: a of the earlier run, r1, is failed"),
        (
            {"a": "removed", "b": "success"},
            {"a": "success", "b": "failed"},
            "wait_for_downstream: b of the earlier run, r1, is failed",
        ),
        ({"a": "removed", "b": "success"}, {"a": "removed", "b": "success"}, None),
    ],
)
def test_the_predecessor_is_in_the_newest_run_that_has_the_task(
    scenario: Scenario, states: dict[str, str], earlier: dict[str, str], reason: str | None
) -> None:
    assert with_past(scenario, states, earlier) == ({} if reason is None else {0: reason})


def test_what_an_external_task_sensor_waits_for() -> None:
    def ends(*answers: dict[str, int], **arguments: Any) -> str:
        with DAG("sensors", start_date=NOON):
            sensor = ExternalTaskSensor(task_id="s", external_dag_id="o", external_task_id="t", **arguments)
        answer = sensor.poke({"ti": Ti("s", answers=[list(answers)]), "logical_date": NOON})
        return "done" if answer else "waits"

    def meaning(state: S) -> str:
        if state is S.REMOVED:
            both = (ends({state: 1}), ends({state: 2, S.SUCCESS: 1}), ends({state: 1, S.RUNNING: 1}))
            return "not counted" if both == ("done", "done", "waits") else "counted"
        assert ends({state: 1, S.SUCCESS: 2}) == ends({state: 1})
        return ends({state: 1})

    check("ExternalTaskSensor", meaning)


def test_a_sensor_in_a_run_without_a_logical_date() -> None:
    with DAG("sensors", start_date=NOON):
        plain = ExternalTaskSensor(task_id="s", external_dag_id="o")
        called = ExternalTaskSensor(task_id="c", external_dag_id="o", execution_date_fn=lambda date: date - timedelta(hours=1))
    ti = Ti("c", answers=[[{"success": 1}]])

    with pytest.raises(FailTask, match="give it execution_date_fn"):
        run(plain, logical_date=None)
    run(called, ti, logical_date=None)

    assert row("ExternalTaskSensor")["no logical date"] == "fails, or calls `execution_date_fn` with `run_after`"
    assert [target.logical_date for target in ti.asked[0]] == [NOON - timedelta(hours=1)]


def test_what_counts_for_the_state_of_a_run() -> None:
    graph = dag("d", {"a": [], "b": []})

    def meaning(state: S) -> str:
        with_success = run_state(graph, {0: {-1: S.SUCCESS}, 1: {-1: state}})
        if state is S.REMOVED:
            with_failure = run_state(graph, {0: {-1: S.FAILED}, 1: {-1: state}})
            return "not counted" if (with_success, with_failure) == ("success", "failed") else "counted"
        return str(with_success) if with_success else "open"

    check("State of the run", meaning)


def test_what_meets_an_sla(scenario: Scenario) -> None:
    states = [state for states in COLUMNS.values() for state in states]
    graph = dag("d", {f"t{number}": [] for number, _ in enumerate(states)}, task={"sla_s": 1.0})
    scenario.add(graph)
    made = scenario.trigger("d", run_id="r", dated=False)
    scenario.sql("alter table task_instance disable trigger all")
    for number, state in enumerate(states):
        place(scenario, made, f"t{number}", state)
    scenario.sql("update dag_run set run_type = 'scheduled', run_after = now() - interval '1 h'")
    scenario.sql("update task_instance set ended_at = now() - interval '1 h' where ended_at is not null")
    with scenario.engine.begin() as connection:
        deadlines.plan(connection, graph, made)
        deadlines.settle(connection, made)
    missed = {number for (number,) in scenario.rows("select task_no from deadline where missed_at is not null")}

    def meaning(state: S) -> str:
        is_missed = states.index(state) in missed
        return "missed" if is_missed else "not counted" if state is S.REMOVED else "met"

    check("SLA", meaning)
    assert row("SLA")["no logical date"] == "counts from `run_after`"
    assert scenario.rows("select distinct d.due_at - r.run_after from deadline d, dag_run r") == [(timedelta(seconds=1),)]


def place(scenario: Scenario, made: int, task_id: str, state: S) -> None:
    """Put a task instance into a state, with what the database requires of it."""
    scenario.sql(
        "update task_instance set state = %s, scheduled_at = now(), queued_at = now(), started_at = now(), due_at = now(),"
        " dispatch_id = gen_random_uuid(), worker = 'w', queued_by = 'q', resume = '{}', ended_at = %s"
        " where dag_run_id = %s and task_id = %s",
        None if state is S.NONE else state.value,
        datetime.now(UTC) if state in {S.SUCCESS, S.SKIPPED, S.FAILED, S.UPSTREAM_FAILED} else None,
        made,
        task_id,
    )


def test_what_clear_and_mark_change(scenario: Scenario) -> None:
    states = [state for states in COLUMNS.values() for state in states]
    made = scenario.triggered(dag("d", {f"t{number}": [] for number, _ in enumerate(states)}), run_id="r", dated=False)
    scenario.sql("alter table task_instance disable trigger all")
    for number, state in enumerate(states):
        place(scenario, made, f"t{number}", state)
    chosen = Runs(dag_id="d", run_id="r")
    names = [f"t{number}" for number, _ in enumerate(states)]
    cleared = {
        change.task_id
        for change in rehearse(scenario.engine, clear.clear, chosen, Tasks(), core=scenario.settings.core, dry_run=True)
    }

    def clearing(state: S) -> str:
        # An undecided one is as clear as can be.
        return "cleared" if state is S.NONE or names[states.index(state)] in cleared else "left"

    check("Clear", clearing)
    marked = {
        change.task_id
        for change in rehearse(scenario.engine, mark.mark, chosen, Tasks(task_ids=tuple(names)), S.SUCCESS, dry_run=True)
    }
    check("Mark as success", lambda state: "marked" if names[states.index(state)] in marked else "left")


def test_runs_have_one_order(scenario: Scenario) -> None:
    """Ranges, "past" and "future", and the previous run place runs without a logical date by their run_after."""
    scenario.add(WAITING)
    undated = days(scenario, "d", 3, dated=False)
    between = scenario.trigger("d", run_id="between", logical_date=datetime(2026, 1, 2, 12, tzinfo=UTC))
    order = [*undated[:2], between, undated[2]]

    def keys(**chosen: Any) -> list[int]:
        return transact(scenario.engine, selection.run_keys, Runs(dag_id="d", **chosen))

    assert keys() == order
    assert keys(run_id="between", past=True) == order[:3] and keys(run_id="r2", future=True) == order[1:]
    assert keys(from_date=datetime(2026, 1, 2, tzinfo=UTC), to_date=datetime(2026, 1, 2, 18, tzinfo=UTC)) == order[1:3]
    with scenario.engine.begin() as connection:
        before = [run_facts.before(connection, one, ["a"], catchup=False) for one in order]
    assert [one and one.run_id for one in before] == [None, "r1", "r2", "between"]
    for rule in ("`depends_on_past`", "`wait_for_downstream`", "Clear", "Mark as success"):
        assert row(rule)["no logical date"] == "placed by `run_after`"


def test_earlier_runs_without_a_logical_date(scenario: Scenario) -> None:
    """They count for the average, the series of failures, and the dates of the last success."""
    average = {"reference": "average_runtime", "interval_s": 0.0, "at": None, "max_runs": 2, "min_runs": 2, "name": None}
    graph = dag("d", {"a": []}, deadlines=(average,), max_consecutive_failed_dag_runs=2)
    scenario.add(graph)
    runs = days(scenario, "d", 5, dated=False)
    seconds = {0: 100, 1: 10, 2: 30, 3: 1000}  # The newest one before the last run has failed.
    for at, took in seconds.items():
        scenario.sql(
            "update dag_run set state = %s, started_at = run_after, ended_at = run_after + make_interval(secs => %s) where id = %s",
            "failed" if at == 3 else "success",
            took,
            runs[at],
        )
    scenario.sql("delete from deadline")
    with scenario.engine.begin() as connection:
        deadlines.plan(connection, graph, runs[4])
        assert external_runs.previous_success(EngineReader(connection), runs[4])[2] == datetime(2026, 1, 3, tzinfo=UTC)  # type: ignore[index]

    assert scenario.rows("select d.due_at - r.queued_at from deadline d join dag_run r on r.id = d.dag_run_id") == [
        (timedelta(seconds=20),)
    ]
    assert transact(scenario.engine, dags.pause_if_failing, [runs[3]]) == {}
    scenario.sql("update dag_run set state = 'failed', started_at = now(), ended_at = now() where id = %s", runs[4])
    assert transact(scenario.engine, dags.pause_if_failing, [runs[4]]) == {"d": 2}
    check("`AVERAGE_RUNTIME`", lambda state: "counted" if state == "success" else "not counted", RUN_COLUMNS)
    check(
        "`max_consecutive",
        lambda state: {"success": "ends the series", "failed": "counted"}.get(state, "not counted"),
        RUN_COLUMNS,
    )
    check("`prev_start_date_success`", lambda state: "found" if state == "success" else "not found", RUN_COLUMNS)
    for rule in ("`AVERAGE_RUNTIME`", "`max_consecutive", "`prev_start_date_success`"):
        assert row(rule)["no logical date"] == "placed by `run_after`"


def test_waiting_for_a_run() -> None:
    def meaning(state: str) -> str:
        with DAG("waits"):
            waits = TriggerDagRunOperator(task_id="t", trigger_dag_id="o", wait_for_completion=True, poke_interval=0)
            sensor = ExternalTaskSensor(task_id="s", external_dag_id="o", mode="reschedule")
        found = sensor.poke({"ti": Ti("s", answers=[[{state: 1}]]), "logical_date": NOON})
        try:
            run(waits, Ti("t", answers=[[{state: 1}]]))
        except IndexError:  # It looks again.
            return "waits"
        except ExternalTaskFailedError:
            return "done" if found else "fails (the sensor: waits)"
        return "done" if found else "waits"

    check("TriggerDagRunOperator", meaning, RUN_COLUMNS)


def test_a_run_without_a_logical_date_is_found_by_its_run_id_only(scenario: Scenario) -> None:
    scenario.add(dag("d", {"a": []}))
    [made] = days(scenario, "d", 1, dated=False)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with scenario.engine.begin() as connection:
        answers = external_runs.states(
            EngineReader(connection), lambda _: WAITING, [Target(dag_id="d", run_id="r1"), Target(dag_id="d", logical_date=at)]
        )

    assert answers == [{"queued": 1}, {}] and made
    assert row("TriggerDagRunOperator")["no logical date"] == "found by its run ID only"


def test_deadlines_of_a_run(scenario: Scenario) -> None:
    def spec(reference: str) -> dict[str, Any]:
        return {"reference": reference, "interval_s": 0.0, "at": None, "max_runs": None, "min_runs": None, "name": None}

    graph = dag("d", {"a": []}, deadlines=(spec("dagrun_queued_at"), spec("dagrun_logical_date")))
    scenario.add(graph)
    states = [state for states in RUN_COLUMNS.values() for state in states]
    runs = dict(zip(states, days(scenario, "d", len(states), dated=False), strict=True))
    assert scenario.rows("select distinct number from deadline") == [(0,)]
    assert row("Deadline of a run")["no logical date"] == "none for `DAGRUN_LOGICAL_DATE`, else no effect"
    for state, key in runs.items():
        ended = datetime(2026, 1, 1, tzinfo=UTC) if state in {"success", "failed"} else None
        scenario.sql("update dag_run set state = %s, started_at = now(), ended_at = %s where id = %s", state, ended, key)

    def meaning(state: str) -> str:
        met, missed = transact(scenario.engine, deadlines.settle, runs[state])
        assert met + missed == 1
        return "met" if met else "missed"

    check("Deadline of a run", meaning, RUN_COLUMNS)


def test_the_tasks_of_a_group_are_those_of_the_version_of_the_run(scenario: Scenario) -> None:
    """A task that only a newer version has is never waited for, nor one that the run has lost."""
    groups = ({"group_id": "g", "parent": None},)
    old = dag("d", {"a": [], "b": [], "c": []}, options={"a": {"group": "g"}, "b": {"group": "g"}}, groups=groups)
    new = dag("d", {"a": [], "b": [], "new": []}, task={"group": "g"}, groups=groups)
    scenario.add(old)
    [made] = days(scenario, "d", 1)
    scenario.add(new)
    scenario.sql("alter table task_instance disable trigger all")
    for task_id, state in {"a": S.SUCCESS, "b": S.REMOVED, "c": S.REMOVED}.items():
        place(scenario, made, task_id, state)

    def answer(version: Any, **target: str) -> Any:
        with scenario.engine.begin() as connection:
            [found] = external_runs.states(EngineReader(connection), lambda _: version, [Target(dag_id="d", run_id="r1", **target)])
        return found

    assert answer(old, group_id="g") == {"success": 1, "removed": 1}
    assert answer(new, task_id="c") == {"removed": 1}
    assert answer(new, task_id="b") == {"removed": 1}
