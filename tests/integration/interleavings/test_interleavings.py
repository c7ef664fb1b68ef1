"""Each statement that may wait for a lock, against each change that another session can commit meanwhile."""

import pytest
from support import locking_functions
from support.interleaved_statements import STATEMENTS, interleaving
from support.interleavings import CHANGES
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
