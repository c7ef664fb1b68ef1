"""Mutants of the product: each can be derived from the current source, and a chaos run detects them (`make test-chaos-mutants`)."""

import pytest
from chaos.mutants import MUTANTS, ROOT, Change, Mutant, StaleMutantError, changed
from chaos.run_mutants import counted


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_the_text_that_a_mutant_replaces_is_in_the_product_once(mutant: Mutant) -> None:
    for change in mutant.changes:
        text = changed(mutant, change, (ROOT / change.file).read_text(encoding="utf-8"))
        if change.file.endswith(".py"):
            compile(text, change.file, "exec")


def test_a_mutant_whose_text_is_gone_names_the_place() -> None:
    mutant = Mutant("one", "lost", [Change("workers/task/execute.py", "no such text", "")])

    with pytest.raises(StaleMutantError, match=r"one: 'no such text' is 0 times in workers/task/execute\.py, not once"):
        changed(mutant, mutant.changes[0], "source")


@pytest.mark.on_demand
@pytest.mark.stack
@pytest.mark.alone
@pytest.mark.timeout(400)
def test_a_product_that_discards_successes_does_not_print_zeros() -> None:
    mutant = next(one for one in MUTANTS if one.name == "retries_a_success")

    assert counted(mutant)[mutant.counter] > 0
