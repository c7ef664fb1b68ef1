"""The DAG file that the fork server reads before it forks."""

import sys
from pathlib import Path

from scheduler.dagfiles import parse
from scheduler.settings import Core, Scheduler


def test_it_can_be_read_and_leaves_nothing_behind() -> None:
    folder = Path(parse.__file__).parent
    work = parse.Work(folder, Core(), Scheduler())
    path, modules = list(sys.path), set(sys.modules)

    parse.warm_up(work)
    assert sys.path == path and {name for name in sys.modules.keys() - modules if "dag_file" in name} == set()

    assert [row["dag_id"] for row in parse.parse("warm_up.py", work)["dags"]] == ["warm_up"]
