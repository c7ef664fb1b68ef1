"""The interleavings see each of these mistakes: a statement that decides by what it read before it had its locks."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from support.interleaved_statements import STATEMENTS, interleaving
from support.interleavings import CHANGES
from support.scenario import Scenario

from scheduler.store.moves import prepared
from scheduler.store.worker import xcoms

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
    Mutant("report_in_any_state", "REPORT", gone(RUNNING), "report", "mark failed"),
    Mutant("suspend_in_any_state", "SUSPEND", gone(RUNNING), "suspend", "mark"),
    Mutant("write_of_a_stale_try", "PUSH", ((" and coalesce(state, '') in ", " and 'running' in "),), "write of a task", "expire"),
    Mutant("deferral_in_any_state", "SUSPEND", gone(RUNNING), "defer", "mark failed"),
    Mutant("claim_in_any_state_of_the_run", "CLAIM", ((QUEUED, "and :is_repeated is not null"),), "claim", "cancel"),
    Mutant("report_in_place_in_any_state", "REPORT", gone(RUNNING), "report in place", "mark failed"),
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
