"""Each statement that may wait for a lock, against each change that another session can commit meanwhile."""

import pytest
from support.interleavings import CHANGES, STATEMENTS, Interleaving
from support.scenario import Scenario

#: `make test` tries these; `make test-interleavings` all.
SAMPLE = {("claim", "version switch"), ("report in place", "pause"), ("lose", "version switch")}


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
    one = Interleaving(scenario)
    try:
        call = STATEMENTS[statement](one)
        with one.overlapped_by(CHANGES[change], call):
            one.judge()
            one.end()
    finally:
        one.close()
