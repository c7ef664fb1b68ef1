"""The cost of an idle stack with 1,000 DAGs, each in its own file.

Everything that happens once (planning, first runs, statistics, the first checkpoint) is over before the clock runs. CPU is that
of the kernel's accounts in nanoseconds, over a window that is long beside every interval but the hour after which settled files
are read again; their share is added from what one such reading costs.
"""

import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path

from bench import parse
from bench.options import Options, Piece
from bench.stack import ROLES, Stack

DAGS, SMALL_DAGS = 1000, 5
WINDOW_S, SMALL_WINDOW_S = 60.0, 3.0
#: Seconds in which statements are counted, apart from the CPU, because logging them costs CPU.
COUNTED_S = 10.0
STATEMENT = re.compile(r"^(\w[^|]*)\|.*(?:statement|execute [^:]*): +\S", re.MULTILINE)


def measure(options: Options) -> Piece:
    """`idle_cores`, and in `idle` the cores of each role, statements per second by application, and the share of parsing again."""
    count = SMALL_DAGS if options.small else DAGS
    window_s = SMALL_WINDOW_S if options.small else WINDOW_S
    with Stack(parse.files(count), postgres={"log_line_prefix": "%a|"}) as stack:
        _settle(stack, count)
        before, start = _nanoseconds(stack), time.monotonic()
        time.sleep(window_s)
        after, passed_s = _nanoseconds(stack), time.monotonic() - start
        cores = {role: _used(before, after, role) / passed_s / 1e9 for role in ROLES}
        statements = _statements(stack, min(window_s, COUNTED_S))
        reading_s = _reading_s(stack)
    interval_s = 0.9 * stack.settings.scheduler.settled_file_process_interval
    cores["reading_settled_files"] = reading_s / interval_s
    total = sum(cores.values())
    options.say(
        f"idle with {count} DAGs: {total:.2%} of a core: " + ", ".join(f"{name} {value:.2%}" for name, value in cores.items())
    )
    options.say("statements a second: " + ", ".join(f"{name} {value:.1f}" for name, value in statements.items()))
    return {
        "idle_cores": round(total, 5),
        "idle": {
            "dags": count,
            "cores": {name: round(value, 5) for name, value in cores.items()},
            "statements_per_s": {name: round(value, 2) for name, value in statements.items()},
        },
    }


def _settle(stack: Stack, count: int) -> None:
    unplanned = """
        select count(*) from dag d left join dag_schedule s on s.dag_id = d.dag_id and s.planned_version_id = d.version_id
         where s.dag_id is null
    """
    stack.wait(lambda: stack.rows("select count(*) from dag")[0][0] == count, 60, "all DAGs")
    stack.wait(lambda: stack.rows(unplanned)[0][0] == 0, 120, "all DAGs to be planned")
    # A schedule without a start date creates its latest run at once.
    open_ = "select count(*) from dag_run where state in ('queued', 'running')"
    stack.wait(lambda: stack.rows(open_)[0][0] == 0, 120, "all runs to end", interval_s=0.5)
    with stack.connection.cursor() as cursor:
        cursor.execute("vacuum analyze")
        cursor.execute("checkpoint")
    time.sleep(3.0)


def _nanoseconds(stack: Stack) -> dict[tuple[str, int], int]:
    """Nanoseconds of CPU of each process, by role and process ID."""
    return {(role, pid): _of_process(pid) for role, pids in stack.pids().items() for pid in pids}


def _of_process(pid: int) -> int:
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(path.read_text().split()[0])
    return total


def _used(before: Mapping[tuple[str, int], int], after: Mapping[tuple[str, int], int], role: str) -> int:
    return sum(value - before.get(key, 0) for key, value in after.items() if key[0] == role)


def _statements(stack: Stack, seconds: float) -> dict[str, float]:
    """Statements per second that PostgreSQL logs, by the application that sent them."""
    log = stack.servers.logs_folder / "postgres.log"
    _log_statements(stack, "all")
    start = log.stat().st_size
    time.sleep(seconds)
    with log.open("rb") as text:
        text.seek(start)
        found = STATEMENT.findall(text.read().decode(errors="replace"))
    _log_statements(stack, "none")
    names = sorted(set(found) - {"paceline bench"})
    return {name: found.count(name) / seconds for name in names}


def _log_statements(stack: Stack, which: str) -> None:
    with stack.connection.cursor() as cursor:
        cursor.execute(f"alter system set log_statement = '{which}'")
        cursor.execute("select pg_reload_conf()")


def _reading_s(stack: Stack) -> float:
    """CPU seconds of all processes to parse each file once more."""
    before = stack.cpu_seconds()["total"]
    parse.read_again(stack, interval_s=0.5)
    return stack.cpu_seconds()["total"] - before
