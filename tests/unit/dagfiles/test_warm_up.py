"""The DAG file that the fork server reads before it forks."""

import sys
from pathlib import Path

from scheduler.dagfiles import fork_server
from scheduler.settings import Core, Scheduler


def test_it_can_be_read_and_leaves_nothing_behind() -> None:
    folder = Path(fork_server.__file__).parent
    work = fork_server.Work(folder, Core(), Scheduler())
    path, modules = list(sys.path), set(sys.modules)

    fork_server.warm_up(work)
    assert sys.path == path and {name for name in sys.modules.keys() - modules if "dag_file" in name} == set()

    assert [row["dag_id"] for row in fork_server.parse("warm_up.py", work)["dags"]] == ["warm_up"]
