"""docs/explanation/chaos.md names exactly the existing faults, counters and mutants."""

import re
from pathlib import Path

from chaos.faults import MEASURED, UNMEASURED
from chaos.mutants import MUTANTS
from chaos.run import counters

PAGE = Path(__file__).parents[3] / "docs/explanation/chaos.md"


def _rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    return [line.strip("|").split("|") for line in table[0].splitlines()[2:]]


def _names(cell: str) -> list[str]:
    return re.findall(r"`([a-z_]+)`", cell)


def test_the_page_lists_every_fault() -> None:
    listed = [name for row in _rows("Faults") for name in _names(row[0])]

    assert sorted(listed) == sorted({fault.__name__ for fault in (*UNMEASURED, *MEASURED)})


def test_the_page_lists_every_counter_with_the_mutants_that_prove_it() -> None:
    listed = {_names(row[0])[0]: _names(row[3]) for row in _rows("Counters")}

    assert sorted(listed) == sorted(counters())
    assert listed == {counter: [mutant.name for mutant in MUTANTS if mutant.counter == counter] for counter in listed}


def test_every_counter_has_a_mutant() -> None:
    assert {mutant.counter for mutant in MUTANTS} == set(counters())
    assert len(MUTANTS) >= 15
