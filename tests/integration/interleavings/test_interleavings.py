"""Each statement that may wait for a lock, against each change that another session can commit meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from support import locking_functions
from support.interleaved_statements import STATEMENTS, interleaving
from support.interleavings import CHANGES
from support.scenario import Scenario

from scheduler.store.moves import prepared
from scheduler.store.worker import xcoms

#: `make test` tries these; `make test-interleavings` all.
SAMPLE = {
    ("claim", "version switch"),
    ("report in place", "pause"),
    ("step", "pause"),
    ("steps", "pause"),
    ("lose", "version switch"),
}


def cells() -> list[object]:
    return [
        pytest.param(
            statement, change, marks=[] if (statement, change) in SAMPLE else [pytest.mark.long], id=f"{statement}-{change}"
        )
        for statement in STATEMENTS
        for change in CHANGES
    ]


@pytest.mark.parametrize(("statement", "change"), cells())
def test_what_a_statement_decides_is_true_when_it_has_its_locks(scenario: Scenario, statement: str, change: str) -> None:
    one = interleaving(scenario, statement)
    try:
        call = STATEMENTS[statement](one)
        with one.overlapped_by(CHANGES[change], call):
            one.judge()
            one.end()
    finally:
        one.close()


#: What the statements change.
TABLES = ("task_instance", "dag_run", "notice", "xcom", "backfill", "deferral", "deadline", "dag_schedule")


def rows_of(scenario: Scenario) -> dict[str, object]:
    return {table: scenario.rows(f"select md5(string_agg(t::text, ',' order by t::text)) from {table} t") for table in TABLES}


@pytest.mark.long
@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_statement_calls_the_functions_and_sends_the_texts_that_it_covers(scenario: Scenario, statement: str) -> None:
    one = interleaving(scenario, statement)
    try:
        call = STATEMENTS[statement](one)
        before = rows_of(scenario)
        with locking_functions.entered() as entered:
            call()
        listed = [which.get(statement, set()) for which in (locking_functions.COVERED, locking_functions.TEXTS)]
        assert set().union(*listed) <= entered
        assert rows_of(scenario) != before
    finally:
        one.close()


LOCK = " for no key update"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of the source of a statement, and the interleaving that must see it."""

    name: str
    target: str
    replaced: tuple[tuple[str, str], ...]
    statement: str
    change: str


def gone(*texts: str) -> tuple[tuple[str, str], ...]:
    return tuple((text, "") for text in texts)


QUEUED = "and (coalesce(t.state, '') = 'queued' or (:is_repeated and coalesce(t.state, '') = 'running' and t.worker = :worker))"
RUNNING = "and coalesce(state, '') = 'running'"
TRYING = "and coalesce(t.state, '') = 'running'"
MUTANTS = [
    Mutant("claim_without_lock", "HOLD", gone(LOCK), "claim", "version switch"),
    Mutant(
        "claim_of_another_dispatch", "CLAIM", (("t.dispatch_id = :dispatch_id", ":dispatch_id is not null"),), "claim", "requeue"
    ),
    Mutant("claim_in_any_state", "CLAIM", ((QUEUED, "and :is_repeated is not null"),), "claim", "mark"),
    Mutant(
        "claim_for_a_lost_worker",
        "CLAIM",
        (("p.id = :worker and p.stopped_at is null", "p.id = :worker and :is_repeated is not null"),),
        "claim",
        "expire",
    ),
    Mutant("report_without_lock", "HOLD_MOVES", gone(LOCK), "report in place", "version switch"),
    Mutant("report_in_a_paused_dag", "REPORT", gone("not a.is_paused and "), "report in place", "pause"),
    Mutant("report_without_lock_in_a_paused_dag", "HOLD_MOVES", gone(LOCK), "report in place", "pause"),
    Mutant("report_in_any_state", "REPORT", gone(TRYING), "report", "mark failed"),
    Mutant("suspend_in_any_state", "SUSPEND", gone(RUNNING), "suspend", "mark"),
    Mutant("write_of_a_stale_try", "PUSH", ((" and coalesce(state, '') in ", " and 'running' in "),), "write of a task", "expire"),
    Mutant("deferral_in_any_state", "SUSPEND", gone(RUNNING), "defer", "mark failed"),
    Mutant("claim_in_any_state_of_the_run", "CLAIM", ((QUEUED, "and :is_repeated is not null"),), "claim", "cancel"),
    Mutant("report_in_place_in_any_state", "REPORT", gone(TRYING), "report in place", "mark failed"),
    Mutant("step_without_lock", "HOLD_MOVES", gone(LOCK), "step", "version switch"),
    Mutant("step_in_a_paused_dag", "STEP", gone("not a.is_paused and "), "step", "pause"),
    Mutant("step_in_any_state", "STEP", gone(TRYING), "step", "mark failed"),
    Mutant("steps_without_lock", "HOLD_STEPS", gone(LOCK), "steps", "version switch"),
    Mutant("steps_in_a_paused_dag", "STEPS", gone("not a.is_paused and "), "steps", "pause"),
    Mutant("steps_in_any_state", "STEPS", gone(TRYING), "steps", "mark failed"),
]


def apply(mutant: Mutant, patch: pytest.MonkeyPatch) -> None:
    if mutant.target == "PUSH":
        patch.setattr(xcoms, "PUSH", _changed(xcoms.PUSH, mutant))
    else:
        former = getattr(prepared, mutant.target)
        changed = replace(former, body=_changed(former.body, mutant))
        match mutant.target:
            case "HOLD":
                patch.setattr(prepared, "HOLD", changed)
            case "HOLD_MOVES":
                patch.setattr(prepared, "HOLD_MOVES", changed)
            case "CLAIM":
                patch.setattr(prepared, "CLAIM", changed)
            case "REPORT":
                patch.setattr(prepared, "REPORT", changed)
            case "STEP":
                patch.setattr(prepared, "STEP", changed)
            case "HOLD_STEPS":
                patch.setattr(prepared, "HOLD_STEPS", changed)
            case "STEPS":
                patch.setattr(prepared, "STEPS", changed)
            case "SUSPEND":
                patch.setattr(prepared, "SUSPEND", changed)
        statements = [changed if one is former else one for one in prepared.ALL.values()]
        patch.setattr(prepared, "STATEMENTS", "".join(f"\n{one.prepare}" for one in statements))


def _changed(source: str, mutant: Mutant) -> str:
    changed = source
    for old, new in mutant.replaced:
        changed = changed.replace(old, new)
    assert changed != source, f"{mutant.name} changes nothing"
    return changed


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_interleavings_see_a_mutant(
    make_scenario: Callable[..., Scenario], mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(mutant, monkeypatch)
    one = interleaving(make_scenario(), mutant.statement)
    try:
        call = STATEMENTS[mutant.statement](one)
        with one.overlapped_by(CHANGES[mutant.change], call), pytest.raises(AssertionError):
            one.judge()
    finally:
        one.close()
