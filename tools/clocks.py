"""No decision depends on the clock of a machine, only on PostgreSQL's. The files that read another clock are listed here."""

import ast
import re
from collections.abc import Iterator

from tools.sources import PRODUCT, ROOT, check, differences, modules, read

#: All of PostgreSQL's functions for the present moment.
SQL_CLOCKS = re.compile(
    r"\b(clock_timestamp|statement_timestamp|transaction_timestamp|now|timeofday)\(\)|\b(current_timestamp|current_time|current_date)\b"
)
#: Reads of the machine's clock, by the called object. Monotonic clocks measure how long something takes, and are free.
WALL = {"now", "utcnow", "today"}
TIME = {"time", "time_ns", "localtime", "gmtime", "ctime", "clock_gettime"}
#: File -> why its reads decide nothing that concerns another machine.
ALLOWED = {
    "scheduler/api/login.py": "how long a person may take to log in at a provider, within minutes",
    "scheduler/process/log_format.py": "the times in logs",
    "scheduler/settings/log_paths.py": "how long a copy on this machine was not read",
    "scheduler/process/fault_points.py": "when a fault struck, for the tests that read it",
    "scheduler/testing/runs.py": "a run in this process alone",
    "scheduler/cli/progress.py": "what a person is shown",
    "scheduler/cli/queues.py": "what a person is shown",
    "scheduler/cli/output.py": "whether a time shown to a person is of today",
    "scheduler/cli/demo.py": "the name of a run",
    "scheduler/cli/dags.py": "the logical date of a test run in this process",
    "scheduler/cli/migrate_airflow.py": "the first day that a comparison with Airflow covers",
    "paceline/airflow/classic.py": "days_ago() of a file for Airflow 2",
    "paceline/airflow/timezone.py": "utcnow() in the code of a DAG file",
    "paceline/authoring/triggers.py": "outside of tasks and waiters, where nobody says what PostgreSQL's clock shows",
    "paceline/quality/suite.py": "outside of tasks, how old the newest row is",
    "scheduler/dagfiles/watch.py": "whether a file was written just now; at worst it is read once more, or a check later",
    "scheduler/dagfiles/pinned_folder.py": "whether a file was written just now; at worst it is read once more",
    "scheduler/store/upkeep/heartbeats.py": "CLOCK_BOOTTIME, which is monotonic: how long the lease of this worker lasts",
    "workers/flower/queues.py": "what a person is shown",
    "workers/process/logs.py": "the times in logs",
    "scheduler/testing/in_memory/store.py": "a run in this process alone",
    "workers/spark/clusters/standalone.py": "until when a request to a Spark master is valid; the master compares",
    "workers/spark/sessions/task.py": "beside what a JVM of the same machine notes of its stages",
}


def reads_of_the_clock(tree: ast.AST) -> Iterator[int]:
    """Lines that call something like datetime.now() or time.time()."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time" and {name.name for name in node.names} & TIME:
            yield node.lineno
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if (owner in {"datetime", "date", "DateTime"} and node.attr in WALL) or (owner == "time" and node.attr in TIME):
                yield node.lineno


@check
def only_listed_files_read_the_clock_of_their_machine() -> Iterator[str]:
    """Each file that reads the machine's clock is in ALLOWED."""
    found = {path for path, tree in modules(*PRODUCT).items() if any(reads_of_the_clock(tree))}
    yield from differences(found, set(ALLOWED), "take PostgreSQL's time, or give the reason in tools/clocks.py")


@check
def tests_can_move_each_clock_that_a_statement_reads() -> Iterator[str]:
    """tests/support/clock.py has a function for each function of PostgreSQL that the store calls."""
    texts = [path.read_text(encoding="utf-8") for kind in ("py", "sql") for path in (ROOT / "scheduler/store").rglob(f"*.{kind}")]
    used = {name for text in texts for names in SQL_CLOCKS.findall(text) for name in names if name}
    moved = set(re.findall(r"create function moved\.(\w+)", read("tests/support/clock.py")))
    yield from differences(used, moved, "add it to tests/support/clock.py")
