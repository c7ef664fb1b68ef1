"""The walk of one task, traced: docs/explanation/architecture.md lists its files, and it stays short."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from support.scenario import pool_process

import scheduler
from workers import strategy

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
#: More than these would be more than a newcomer can hold in mind.
MOST_FILES, MOST_STOPS = 25, 12
#: No stops of their own: they are part of the function around them.
PARTS = re.compile(r"<(listcomp|dictcomp|setcomp|genexpr|lambda)>$")
CHAIN = """
with DAG("d", schedule=None):
    before, traced, after = [task(task_id=name)(lambda: 1)() for name in ("before", "traced", "after")]
    before >> traced >> after
"""


@contextmanager
def trace() -> Iterator[list[CodeType]]:
    """Every function of ours that is entered inside, in order."""
    entered: list[CodeType] = []
    ours = tuple(f"{ROOT / package}/" for package in ("scheduler", "workers"))

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


def one_task(bench: Any) -> list[CodeType]:
    """A pool child runs the second task of a chain, so that everything is loaded, from its message to the next one."""
    scheduler.load_all()
    scenario = bench.scenario
    bench.dag(CHAIN)
    scenario.trigger("d", run_id="r1")
    scenario.turn()
    strategy.executes_with(pool_process(scenario).run)
    strategy.run(*scenario.messages()[0])
    (message,) = scenario.messages()
    with trace() as entered:
        failed, _, _ = strategy.run(*message)
    assert not failed
    assert scenario.states() == {"before": "success", "traced": "success", "after": "queued"}
    assert len(scenario.messages()) == 1
    return entered


def test_one_task_walks_through_the_files_that_the_page_lists(bench: Any) -> None:
    entered = one_task(bench)

    files = list(dict.fromkeys(str(Path(code.co_filename).relative_to(ROOT)) for code in entered))
    assert files == walk_of_the_page()
    assert len(files) <= MOST_FILES

    names = [code.co_qualname for code in entered if not PARTS.search(code.co_qualname)]
    start = names.index("Follower.report")
    stops = list(dict.fromkeys(names[start : names.index("WorkerConnection.run", names.index("HotPath.report")) + 1]))
    assert len(stops) <= MOST_STOPS, stops
