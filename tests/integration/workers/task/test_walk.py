"""The walk of one task, traced: docs/explanation/architecture.md lists its files, and it stays short."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from support.scenario import pool_process

from scheduler.dagfiles import load
from workers.celery_worker import strategy

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
#: More than these would be more than a newcomer can hold in mind.
MOST_FILES, MOST_STOPS = 28, 12
#: No stops of their own: they are part of the function around them.
PARTS = re.compile(r"<(listcomp|dictcomp|setcomp|genexpr|lambda)>$")
#: Sends the message of the next task, as in the text below the table of the page.
PUBLISHER = "scheduler/messaging/publisher.py"
CHAIN = """
with DAG("d", schedule=None):
    task(task_id="traced")(lambda: 1)() >> task(task_id="after")(lambda: 1)()
"""


@contextmanager
def trace() -> Iterator[list[CodeType]]:
    """Every function of ours that is entered inside, in order."""
    entered: list[CodeType] = []
    ours = tuple(f"{ROOT / package}/" for package in ("paceline", "scheduler", "workers"))

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            entered.append(frame.f_code)

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


def walk_of_the_page() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## The walk of one task\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/.]+)` \|", section, re.MULTILINE)


def one_task(bench: Any, *, in_place: bool) -> list[CodeType]:
    """A pool process runs the first task of a second run, so that everything is loaded: from its message to the next task.

    The next task runs in the same process, or its message is sent.
    """
    load.preload()
    scenario = bench.scenario
    bench.dag(CHAIN)
    # However slow the machine is.
    strategy.executes_with(pool_process(scenario, in_place_seconds=60 if in_place else 0).run, bool)
    for number in range(2):
        run = scenario.trigger("d", run_id=f"r{number}")
        scenario.turn()
        (message,) = scenario.messages()
        with trace() as entered:
            failed, _, _ = strategy.run(*message)
        assert not failed
        assert scenario.states(run) == {"traced": "success", "after": "success" if in_place else "queued"}
        assert len(scenario.messages()) == (0 if in_place else 1)
    starts = [place for place, code in enumerate(entered) if code.co_qualname == "TryRunner._run_claimed"]
    assert len(starts) == (2 if in_place else 1)
    return entered[: starts[1]] if in_place else entered


@pytest.mark.parametrize(
    ("in_place", "at_the_end"), [(True, []), (False, [PUBLISHER])], ids=["the next task runs in place", "its message is sent"]
)
def test_one_task_walks_through_the_files_that_the_page_lists(bench: Any, in_place: bool, at_the_end: list[str]) -> None:
    entered = one_task(bench, in_place=in_place)

    files = list(dict.fromkeys(str(Path(code.co_filename).relative_to(ROOT)) for code in entered))
    assert files == walk_of_the_page() + at_the_end
    assert len(files) - len(at_the_end) <= MOST_FILES

    names = [code.co_qualname for code in entered if not PARTS.search(code.co_qualname)]
    start = names.index("Follower.report")
    stops = list(dict.fromkeys(names[start : names.index("WorkerConnection.run", names.index("HotPath.report")) + 1]))
    assert len(stops) <= MOST_STOPS, stops
