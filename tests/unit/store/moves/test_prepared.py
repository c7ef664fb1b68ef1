"""The .sql files of the hot path: each statement is read, and the lists and numbers in them are the ones of the code."""

import re
from pathlib import Path

import pytest

from paceline import states
from paceline.states import States
from scheduler.store.db.prepared import Prepared
from scheduler.store.moves import prepared
from scheduler.store.queueing.limits import LOWEST_RANK

FILES = sorted((Path(__file__).parents[4] / "scheduler" / "store" / "moves").glob("*.sql"))


def test_a_statement_gets_its_parameters_by_number_and_type() -> None:
    statement = Prepared("pick", {"ids": "int[]", "id": "bigint"}, "select 1::text where :id = any(:ids) or :id = 0")

    assert statement.prepare == ("prepare pick as\nselect 1::text where $2::bigint = any($1::int[]) or $2::bigint = 0;")
    assert statement.execute == "execute pick(%(ids)s::int[], %(id)s)"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_statement_of_a_file_is_prepared_with_the_numbers_that_psql_takes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = prepared.read(path.stem)

    assert {one.name for one in found} <= prepared.ALL.keys()
    found = [one for one in found if one.name not in {"step", "steps"}]
    assert [one.name for one in found] == re.findall(r"^prepare (\w+)", text, re.MULTILINE)
    numbers = [int(number) for number in re.findall(r"\\set \w+ \$(\d+)::", text)]
    assert numbers == [number for one in found for number in range(1, len(one.parameters) + 1)]
    for one in found:
        assert set(re.findall(r"(?<!:):(\w+)", one.body)) == one.parameters.keys(), one.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_lists_of_states_are_sets_of_the_table_of_states(path: Path) -> None:
    lists = re.findall(r"state (?:not )?in (\([^)]*\))", path.read_text(encoding="utf-8"))

    known = {value.sql for value in vars(states).values() if isinstance(value, States)}
    assert {" ".join(one.split()) for one in lists} <= known


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_rank_is_that_of_the_end_of_the_line(path: Path) -> None:
    ranks = re.findall(r"rank > (-?\d+)", path.read_text(encoding="utf-8"))

    assert set(ranks) <= {str(LOWEST_RANK)}


def test_the_check_of_lists_and_ranks_sees_them() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)

    assert len(re.findall(r"state (?:not )?in \(", text)) == 9
    assert len(re.findall(r"rank > -1\d{18}", text)) == 3


def test_a_step_is_the_report_without_the_lines_that_only_a_report_has() -> None:
    report, step = (prepared.ALL[name].body for name in ("report", "step"))

    assert step.count("--step") == report.count("--[") == step.count("--[") == 0
    for part in ("join dag_run r on", "s.is_paused", "b.rank > a.first_rank", "update task_instance t", "on conflict"):
        assert part in report and part in step
    for part in ("probe", "other.waits", "skip locked", "was_waiting"):
        assert part in report and part not in step
    assert (
        set(re.findall(r"(?<!:):(\w+)", step)) == prepared.ALL["step"].parameters.keys() < prepared.ALL["report"].parameters.keys()
    )


def test_several_steps_at_once_are_a_step_with_a_row_for_each_parameter() -> None:
    step, steps = (prepared.ALL[name] for name in ("step", "steps"))
    of_text = re.sub(r"(?<!:):(\w+)\b", r"q.\1", re.sub(r"\(:(\w+)\)\[1\]", r":\1", step.body))

    assert steps.parameters == {name: f"{kind.removesuffix('[]')}[]" for name, kind in step.parameters.items()}
    # Each condition of a step is one of several, which have only lines more: those that tell the reports apart.
    lines = [line.strip() for line in steps.body.splitlines()]
    missing = [line for line in (line.strip() for line in of_text.splitlines()) if line not in lines and line != "with"]
    assert missing == []
    assert all(re.search(r"\bno\b|\bq\b", line) for line in set(lines) - {line.strip() for line in of_text.splitlines()})
