"""Every function of the store that locks, updates or deletes a row is overlapped with each change, or has a reason not to be."""

import pytest
from support import locking_functions as known
from support.interleaved_statements import STATEMENTS


def test_each_function_that_locks_is_overlapped_with_each_change_or_has_a_reason() -> None:
    listed = set().union(*known.COVERED.values(), *known.TEXTS.values(), *known.NEEDLESS.values())
    found = {name for name in known.find() if not name.startswith(known.ELSEWHERE)}
    assert found - listed == set(), "add these to COVERED, with a statement of interleaved_statements.py, or to NEEDLESS"
    assert listed - found == set(), "these are gone, or lock nothing any more"
    assert {*known.COVERED, *known.TEXTS} <= STATEMENTS.keys()


@pytest.mark.parametrize(
    "text", ["select 1 for no key update", "update pool\n   set x = 1", "update run r set x = 1", "DELETE FROM t"]
)
def test_a_statement_that_locks_is_found(text: str) -> None:
    assert known.LOCKS.search(text)
