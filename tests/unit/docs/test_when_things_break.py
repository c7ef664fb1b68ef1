"""docs/explanation/when-things-break.md has a row for each fault, and names tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "explanation" / "when-things-break.md"
#: The faults for which the design promises an answer.
FAULTS = (
    "a scheduler is killed at any line", "it is killed between commit and publish", "Redis is emptied", "a worker's machine dies",
    "a pool child dies", "a worker is stopped or cut off, then back", "PostgreSQL restarts", "PostgreSQL crashes",
    "a connection is half-open", "a message comes twice", "SIGTERM",
)  # fmt: skip


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_a_row(fault: str) -> None:
    assert [row[0] for row in rows() if row[0].startswith(fault)]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_tests_of_a_row_exist(row: list[str]) -> None:
    named = re.findall(r"`tests/([\w/]+\.py)::(\w+)`", row[3])

    assert named
    for path, name in named:
        assert re.search(rf"^def {name}\(", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE), f"{path}::{name}"
