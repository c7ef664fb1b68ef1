"""The table of paceline/states.py: the transitions of the store allow exactly its pairs, and partial indexes hold its sets."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import IntegrityError
from support.scenario import Scenario, chain, dag

from paceline.states import ACTIVE, DUE, HOLDS_SLOTS, IDLE, OPEN, RUN_UNFINISHED, STARTED, TRANSITIONS, Actor, Decision, TaskState
from scheduler import store
from scheduler.deciding.following import Plan
from scheduler.store.actions import clear, mark
from scheduler.store.db.database import transact
from scheduler.store.moves import decide as moves_decide
from scheduler.store.moves import due, fire
from scheduler.store.moves.first import Limits, schedule_first
from scheduler.store.moves.lose import lose as lose_those
from scheduler.store.moves.queue import queue
from scheduler.store.moves.stop import end_rest
from scheduler.store.read import home
from scheduler.store.runs import integrity, selection
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker.claims import Claim, Deferral, Ending, NextInPlace

S = TaskState
MINE = str(uuid4())
DEFERRAL = Deferral(classpath="a.B", kwargs={})
FILLED = {
    "dispatch_id": MINE,
    "queued_by": "someone",
    "worker": "me",
    "scheduled_at": "2026-01-01T00:00:00Z",
    "queued_at": "2200-01-01T00:00:00Z",  # after any start of the server: tasks queued before it are not claimed immediately
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:00:00Z",
    "due_at": "2026-01-01T00:00:00Z",
    "requested_state": "failed",
    "resume": "{}",
}
#: Columns of task_instance that must not be NULL in a state (the function refuse_incomplete checks them).
REQUIRES: dict[TaskState, tuple[str, ...]] = {
    S.SCHEDULED: ("scheduled_at",),
    S.QUEUED: ("queued_at", "dispatch_id", "queued_by"),
    S.RUNNING: ("started_at", "dispatch_id", "worker"),
    S.SHUTDOWN: ("started_at", "dispatch_id", "worker", "requested_state"),
    S.UP_FOR_RETRY: ("due_at",),
    S.UP_FOR_RESCHEDULE: ("due_at",),
    S.DEFERRED: ("dispatch_id", "resume"),
    S.SUCCESS: ("ended_at",),
    S.FAILED: ("ended_at",),
    S.SKIPPED: ("ended_at",),
    S.UPSTREAM_FAILED: ("ended_at",),
}
Move = Callable[[Scenario, Claim], object]


def decide(state: S) -> Move:
    return lambda scenario, claim: _with(
        scenario, lambda connection: moves_decide.decide(connection, {claim.dag_run_id: [Decision(0, state, "because")]})
    )


def report(state: S) -> Move:
    return lambda scenario, claim: scenario.follower.report(claim, Ending(state, delay_s=0.0, deferral=DEFERRAL))


def end(scenario: Scenario, claim: Claim) -> object:
    return scenario.follower.end_as_requested(claim)


def lose(max_tries: int) -> Move:
    def move(scenario: Scenario, claim: Claim) -> None:
        scenario.sql("update task_instance set max_tries = %s", max_tries)
        _with(scenario, lambda connection: lose_those(connection, dead_worker="me", reason="gone", at_once=True))

    return move


def follow(successor: bool, state: S, *, passes_slots_on: bool = False, in_place: bool = False) -> Move:
    """The report of task 9, whose follow decides task 0 (numbers are free here: only the guard on task 0 matters)."""

    def move(scenario: Scenario, claim: Claim) -> None:
        scenario.sql(
            "insert into task_instance (dag_run_id, task_no, task_id, state, queue, pool, dispatch_id, queued_by, worker,"
            " started_at)"
            " values (%s, 9, 'before', 'running', 'default', 'default_pool', %s, 'x', 'me', now())",
            claim.dag_run_id,
            other := str(uuid4()),
        )
        before = scenario.rows("select id from task_instance where task_no = 9")[0][0]
        finished = Claim(**{name: getattr(claim, name) for name in Claim.__slots__} | {"id": before, "dispatch_id": other})
        plan = Plan(
            settled=[Decision(0, state, "because")],
            successor=0 if successor else None,
            passes_slots=successor or passes_slots_on,
            in_place=in_place,
            line_in_place=in_place,
        )
        scenario.sql("update pool set passes_slots_on = %s", passes_slots_on or in_place)
        scenario.hot.report(finished, Ending(S.SUCCESS), plan, NextInPlace(str(uuid4())))

    return move


def asked_for(asked: str, move: Move) -> Move:
    """`move` on a task instance that was stopped to become `asked`."""

    def asked_move(scenario: Scenario, claim: Claim) -> None:
        scenario.sql("update task_instance set requested_state = %s where state = 'shutdown'", asked)
        move(scenario, claim)

    return asked_move


def person_clears(scenario: Scenario, _: Claim) -> None:
    transact(scenario.engine, clear.clear, Runs(dag_id="d"), Tasks(), core=scenario.settings.core)


def person_marks(state: S) -> Move:
    return lambda scenario, _: transact(scenario.engine, mark.mark, Runs(dag_id="d"), Tasks(), state)


def fit(without_it: bool) -> Move:
    """The run continues with another version: one that has no task 0, or one that has it."""
    tasks = {"t000": []} if not without_it else {"other": []}

    def move(scenario: Scenario, claim: Claim) -> None:
        scenario.add(new := dag("d", tasks, description=f"for run {claim.dag_run_id}"))
        version = scenario.rows("select version_id from dag where dag_id = 'd'")[0][0]

        def work(connection: Connection) -> None:
            run = selection.lock_run(connection, claim.dag_run_id)
            assert run is not None
            integrity.fit(connection, run, new, version, default_queue="default")

        _with(scenario, work)
        scenario.sql("delete from task_instance where task_id = 'other'")
        scenario.sql("update task_instance set task_no = 0")
        scenario.sql("update dag set version_id = (select min(id) from dag_version)")

    return move


def first(parallelism: int) -> Move:
    limits = Limits(parallelism=parallelism, window=32, silent=3600, queued_by="cli:ada")
    ready = [Decision(0, S.SCHEDULED, "because")]
    return lambda scenario, claim: _with(
        scenario, lambda connection: schedule_first(connection, claim.dag_run_id, ready, limits=limits)
    )


ASKED = ("none", "success", "failed", "skipped")
#: Every named transition, with the function that makes it.
MOVES: dict[str, tuple[Actor, Move]] = {
    "first scheduled": (Actor.CREATOR, first(0)),
    "first queued": (Actor.CREATOR, first(100)),
    **{f"decide {state}": (Actor.SCHEDULER, decide(state)) for state in (S.SCHEDULED, S.SKIPPED, S.UPSTREAM_FAILED)},
    "due": (Actor.SCHEDULER, lambda scenario, _: _with(scenario, lambda c: due.due(c, limit=9))),
    "queue": (Actor.SCHEDULER, lambda scenario, claim: _with(scenario, lambda c: queue(c, [claim.id], "s"))),
    "lose with retries": (Actor.SCHEDULER, lose(3)),
    "lose without": (Actor.SCHEDULER, lose(0)),
    **{f"lose asked {asked}": (Actor.SCHEDULER, asked_for(asked, lose(0))) for asked in ASKED},
    "end_rest": (Actor.SCHEDULER, lambda scenario, claim: _with(
        scenario, lambda c: end_rest(c, claim.dag_run_id, running_becomes="skipped", reason="because"))),
    "fit, gone": (Actor.SCHEDULER, fit(without_it=True)),
    "fit, back": (Actor.SCHEDULER, fit(without_it=False)),
    "clear": (Actor.PERSON, person_clears),
    **{f"mark {state}": (Actor.PERSON, person_marks(state)) for state in mark.STATES},
    "claim": (Actor.WORKER, lambda scenario, claim: scenario.claim((claim.id, claim.dispatch_id))),
    **{
        f"report {state}": (Actor.WORKER, report(state))
        for state in (S.SUCCESS, S.FAILED, S.SKIPPED, S.UP_FOR_RETRY, S.UP_FOR_RESCHEDULE, S.DEFERRED)
    },
    **{f"end as requested {asked}": (Actor.WORKER, asked_for(asked, end)) for asked in ASKED},
    "fire": (
        Actor.WAITER,
        lambda scenario, claim: transact(
            scenario.engine, fire.fire, [fire.Fired(ti_id=claim.id, dispatch_id=claim.dispatch_id, outcome={"event": 1})]
        ),
    ),
    "follow scheduled": (Actor.FOLLOWER, follow(False, S.SCHEDULED)),
    "follow queued": (Actor.FOLLOWER, follow(True, S.SCHEDULED)),
    "pass slots on": (Actor.FOLLOWER, follow(False, S.SKIPPED, passes_slots_on=True)),
    "follow in place": (Actor.FOLLOWER, follow(True, S.SCHEDULED, in_place=True)),
    "pass slots on in place": (Actor.FOLLOWER, follow(False, S.SKIPPED, passes_slots_on=True, in_place=True)),
    "follow skipped": (Actor.FOLLOWER, follow(False, S.SKIPPED)),
    "follow upstream_failed": (Actor.FOLLOWER, follow(False, S.UPSTREAM_FAILED)),
}  # fmt: skip


def test_every_pair_of_states_is_allowed_or_refused_as_in_the_table(scenario: Scenario) -> None:
    scenario.add(chain("d", 1))
    seen: set[tuple[S, S, Actor]] = set()
    for number, ((name, (actor, move)), source) in enumerate(itertools.product(MOVES.items(), S)):
        scenario.sql("delete from dag_run")
        run = scenario.trigger("d", run_id=f"r{number}")
        scenario.sql("update dag_run set state = 'running', started_at = now()")
        claim = _put(scenario, run, source)

        move(scenario, claim)

        state, try_number = scenario.rows("select coalesce(state, 'none'), try_number from task_instance where task_no = 0")[0]
        if state != source:
            seen.add((source, S(state), actor))
            raised = state in ("scheduled", "queued", "running") and source in ("none", "up_for_retry")
            assert try_number == (4 if raised else 3), f"{name} from {source}"

    table = {(move.source, move.target, move.actor) for move in TRANSITIONS}
    assert seen - table == set(), "moves that the table does not allow"
    assert table - seen == set(), "rows of the table that no named transition makes"


def test_the_database_has_the_same_states(scenario: Scenario) -> None:
    assert set(_required_by_the_database(scenario)) == set(S) - {S.NONE}


@pytest.mark.parametrize("change", ["state = 'unknown'", "pool_slots = 0", "requested_state = 'unknown'"])
def test_an_impossible_value_is_refused_by_the_database(scenario: Scenario, change: str) -> None:
    scenario.triggered(chain("d", 1))

    with pytest.raises(IntegrityError, match="task_instance_complete"):
        scenario.sql(f"update task_instance set {change}")


@pytest.mark.parametrize(("state", "column"), [(state, column) for state, columns in REQUIRES.items() for column in columns])
def test_a_state_without_its_required_columns_is_refused_by_the_database(scenario: Scenario, state: S, column: str) -> None:
    scenario.add(chain("d", 1))
    _put(scenario, scenario.trigger("d"), state)

    # A frequent state without requested_state is checked first, by an expression of its own.
    for columns in ({column}, {column, "requested_state"}):
        change = ", ".join(f"{name} = null" for name in sorted(columns))
        with pytest.raises(IntegrityError, match=rf"cannot be {state}: no {column} \(task_instance_complete\)") as refused:
            scenario.sql(f"update task_instance set {change}")
        assert refused.value.orig is not None
        assert refused.value.orig.diag.constraint_name == "task_instance_complete"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ("'running', 'none', 1", "cannot be running: no started_at"),
        ("null, 'unknown', 1", "cannot be without a state: requested_state is unknown"),
        ("null, null, 0", "cannot be without a state: pool_slots is 0"),
    ],
)
def test_a_new_task_instance_is_checked_as_well(scenario: Scenario, values: str, missing: str) -> None:
    run = scenario.triggered(chain("d", 1))

    with pytest.raises(IntegrityError, match=missing):
        scenario.sql(
            "insert into task_instance (dag_run_id, task_no, task_id, queue, pool, state, requested_state, pool_slots)"
            f" values (%s, 9, 'x', 'q', 'p', {values})",
            run,
        )
    assert scenario.states() == {"t000": "none"}


def test_the_trigger_runs_for_every_column_that_it_checks(scenario: Scenario) -> None:
    source = scenario.rows("select prosrc from pg_proc where proname = 'refuse_incomplete'")[0][0]
    columns = scenario.rows(
        "select a.attname from pg_trigger t join pg_attribute a on a.attrelid = t.tgrelid and a.attnum = any(t.tgattr)"
        " where t.tgname = 'task_instance_changed'"
    )

    checks = source[: source.index("raise check_violation")]
    assert {column for (column,) in columns} == set(re.findall(r"one\.(\w+)", checks))


def test_no_requirement_is_missing_from_the_table(scenario: Scenario) -> None:
    found = {state: columns for state, columns in _required_by_the_database(scenario).items() if columns}

    assert found == {state: set(columns) for state, columns in REQUIRES.items()}


def _required_by_the_database(scenario: Scenario) -> dict[S, set[str]]:
    """By state, the columns that the function refuse_incomplete requires."""
    source = scenario.rows("select prosrc from pg_proc where proname = 'refuse_incomplete'")[0][0]
    checks = source[: source.index("raise check_violation")]
    state = r"when one\.state operator\(pg_catalog\.=\) '(\w+)' then"
    branches = re.findall(rf"{state}(.*?)(?={state}|\n        else)", checks, re.DOTALL)
    return {S(name): set(re.findall(r"one\.(\w+) is null", required)) for name, required, _ in branches}


def _put(scenario: Scenario, run: int, state: S) -> Claim:
    """Put task 0 of the run into a state, third try, under MINE; the claim of its holder."""
    values = {name: value for name, value in FILLED.items() if state not in (S.NONE, S.SCHEDULED) or name == "scheduled_at"}
    columns = "".join(f", {name} = %s" for name in values)
    scenario.sql(
        f"update task_instance set state = %s, try_number = 3{columns} where dag_run_id = %s",
        None if state is S.NONE else state.value,
        *values.values(),
        run,
    )
    ti_id = scenario.rows("select id from task_instance where dag_run_id = %s", run)[0][0]
    version = scenario.rows("select version_id from dag_run where id = %s", run)[0][0]
    known = dict.fromkeys(Claim.__slots__, None) | {
        "id": ti_id, "dispatch_id": MINE, "task_id": "t000", "task_no": 0, "pool": "default_pool", "pool_slots": 1,
        "dag_run_id": run, "dag_id": "d", "run_id": "r", "version_id": version, "map_index": -1,
    }  # fmt: skip
    return Claim(**known)  # type: ignore[arg-type]


def _with(scenario: Scenario, work: Callable[..., object]) -> None:
    with scenario.engine.begin() as connection:
        work(connection)


#: By index, the set its predicate lists.
LISTED: dict[str, frozenset[str]] = {
    "task_instance_unfinished": OPEN,
    "task_instance_holding": HOLDS_SLOTS,
    "task_instance_due": DUE,
    "task_instance_limited": ACTIVE,
    "dag_run_unfinished": RUN_UNFINISHED,
    "dag_run_backfill": RUN_UNFINISHED,
}
LIMITED = "(max_active_tis_per_dag is not null or max_active_tis_per_dagrun is not null)"


def test_index_predicates_are_sets_of_states(scenario: Scenario) -> None:
    predicates = scenario.rows(
        "select indexrelid::regclass::text, pg_get_expr(indpred, indrelid) from pg_index"
        " where indrelid in ('task_instance'::regclass, 'dag_run'::regclass) and indpred is not null"
    )
    listed = {name: re.findall(r"'(\w+)'", predicate) for name, predicate in predicates if "ARRAY" in predicate}

    assert {name: set(states) for name, states in listed.items()} == {name: set(states) for name, states in LISTED.items()}


def test_each_partial_index_of_task_instance_names_the_statement_that_needs_it(scenario: Scenario) -> None:
    named = dict(
        scenario.rows(
            "select indexrelid::regclass::text, obj_description(indexrelid) from pg_index"
            " where indrelid = 'task_instance'::regclass and indpred is not null"
        )
    )

    assert set(named) == {index for index, table, _ in FOUND if table == "task_instance"}
    for index, comment in named.items():
        files = re.findall(r"store/[\w/]+\.(?:py|sql)", comment)
        assert files, index
        assert [file for file in files if not (Path(store.__file__).parents[1] / file).is_file()] == [], index


#: For each partial index, conditions of statements that find it.
FOUND = [
    ("task_instance_unfinished", "task_instance", f"dag_run_id = 1 and task_no = 1 and (state is null or state in {OPEN.sql})"),
    ("task_instance_unfinished", "task_instance", f"dag_run_id = 1 and task_no = 1 and (state is null or state in {IDLE.sql})"),
    ("task_instance_holding", "task_instance", f"pool = 'a' and queue = 'b' and state in {HOLDS_SLOTS.sql}"),
    ("task_instance_holding", "task_instance", f"pool = 'a' and queue = 'b' and state in {STARTED.sql}"),
    ("task_instance_due", "task_instance", f"due_at < now() and state in {DUE.sql}"),
    ("task_instance_limited", "task_instance", f"task_id = 'a' and {LIMITED} and state in {ACTIVE.sql}"),
    ("dag_run_unfinished", "dag_run", f"dag_id = 'a' and state in {RUN_UNFINISHED.sql}"),
    ("dag_run_backfill", "dag_run", f"backfill_id = 1 and state in {RUN_UNFINISHED.sql}"),
    ("task_instance_waiting", "task_instance", "pool = 'a' and state = 'scheduled' order by rank desc, id limit 1"),
    ("task_instance_deferred", "task_instance", "pool = 'a' and state = 'deferred'"),
    ("task_instance_ended", "task_instance", "ended_at > now() - interval '1 minute'"),
    ("task_instance_failed", "task_instance", "state = any(array['failed']) order by ended_at desc limit 50"),
]


@pytest.mark.parametrize(("index", "table", "condition"), FOUND)
def test_a_list_of_states_finds_its_index(scenario: Scenario, index: str, table: str, condition: str) -> None:
    with scenario.engine.begin() as connection:
        connection.exec_driver_sql("set local enable_seqscan = off")
        plan = connection.exec_driver_sql(f"explain select 1 from {table} where {condition}").scalars().all()

    assert any(re.search(rf"\b{index}\b", line) for line in plan), plan


@pytest.mark.parametrize("read", [home.last_day, home.failed_runs])
def test_the_home_page_finds_the_runs_of_the_last_day_by_index(scenario: Scenario, read: Callable[..., Any]) -> None:
    statements: list[tuple[str, Any]] = []
    with scenario.engine.begin() as connection:
        event.listen(connection, "before_cursor_execute", lambda *arguments: statements.append((arguments[2], arguments[3])))
        read(connection, home.filters())
        ((statement, parameters),) = statements
        connection.exec_driver_sql("set local enable_seqscan = off")
        plan = connection.exec_driver_sql(f"explain {statement}", parameters).scalars().all()

    assert any("dag_run_ended" in line for line in plan), plan
    assert any("Index Cond: (ended_at >" in line for line in plan), plan
