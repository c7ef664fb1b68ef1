"""The part `connections`: the connections of many workers with long and with short tasks, and a burst of reports.

First every pool process is busy all the time with tasks of a minute, which end at random moments. Then all its tasks end at the
same moment. At last, every pool process runs one short task after the other. Then all of this again, on workers whose pool
processes share a connection (`worker.connections` 1).
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, quantiles

import psutil

from bench.options import Options, Piece
from bench.stack import Stack

WORKERS, CHILDREN, TASK_S = 50, 8, 60.0
SMALL_WORKERS, SMALL_CHILDREN, SMALL_TASK_S = 1, 2, 3.0
#: The short tasks: their length, and how many each pool process runs on average.
SHORT_S, EACH, SMALL_EACH = 0.01, 20, 5
SHARED = {"PACELINE_WORKER_CONNECTIONS": "1"}
SMALL_IDLE = {"PACELINE_WORKER_IDLE_CONNECTION_SECONDS": "0.5"}
#: Workers that one core can start and keep alive, and the memory of a pool process with its share of the worker.
PER_CORE, CHILD_BYTES = 8, 60e6
#: The environment variable with a number of workers.
VARIABLE = "BENCH_WORKERS"
SAMPLE_S = 0.25
LIMIT_S = 900.0
#: max_connections as docs/explanation/database.md recommends it.
PER_SCHEDULER, PER_WORKER, RESERVE = 5, 1, 100
STEADY = """\
import random
import time

from paceline import DAG, task

with DAG("steady", schedule=None, catchup=False, max_active_tasks=100000):

    @task
    def wait(number):
        # The first ones end at random moments, so all later ones do.
        time.sleep(random.Random(number).uniform(0, {task_s}) if number < {children} else {task_s})

    wait.expand(number=list(range(3 * {children})))
"""
SHORT = """\
import time

from paceline import DAG, task

with DAG("short", schedule=None, catchup=False, max_active_tasks=100000):

    @task
    def wait(number):
        time.sleep({short_s})

    wait.expand(number=list(range({count})))
"""
BURST = """\
import os
import time

from paceline import DAG, task

with DAG("burst", schedule=None, catchup=False, max_active_tasks=100000):

    @task
    def wait(number):
        while not os.path.exists({go!r}):
            time.sleep(0.2)

    wait.expand(number=list(range({children})))
"""
OPEN = """
select application_name, count(*) from pg_stat_activity
 where datname = current_database() and application_name <> 'paceline bench' group by 1
"""
RUNNING = "select count(*) from task_instance where dag_run_id = %s and state = 'running'"
UNFINISHED = """
select exists (select from task_instance where dag_run_id = %s and (state is null or state in ('scheduled', 'queued', 'running')))
"""
RETRIED = "select count(*) from task_instance where dag_run_id = any(%s) and (state <> 'success' or try_number <> 1)"
REFUSED = re.compile(rb"too many clients|connection slots are reserved")


def measure(options: Options) -> Piece:
    """`connections`: how many were open while all pool processes were busy, by process, how the burst went, and the same with
    short tasks. `shared` has the same of workers with a pooler.
    """
    own = _measured(options, {})
    return {"connections": own | {"shared": _measured(options, SHARED)}}


def _measured(options: Options, environment: Mapping[str, str]) -> Piece:
    workers, children, task_s = (SMALL_WORKERS, SMALL_CHILDREN, SMALL_TASK_S) if options.small else (_workers(), CHILDREN, TASK_S)
    total = workers * children
    limit = PER_SCHEDULER + PER_WORKER * workers + RESERVE
    with Stack(
        {"steady.py": STEADY.format(task_s=task_s, children=total)},
        workers=workers,
        concurrency=children,
        # Above the number of pool processes, like the slots of the pool below: by default, 256 tasks run at once.
        environment={"PACELINE_CORE_PARALLELISM": str(2 * total)} | (SMALL_IDLE if options.small else {}) | dict(environment),
        postgres={"max_connections": str(limit)},
        start_s=LIMIT_S,
    ) as stack:
        go = stack.folder / "go"
        short = total * (SMALL_EACH if options.small else EACH)
        stack.write({"burst.py": BURST.format(go=str(go), children=total), "short.py": SHORT.format(short_s=SHORT_S, count=short)})
        stack.wait_parsed()
        with stack.connection.cursor() as cursor:
            cursor.execute("update pool set slots = %s", (2 * total,))
        idle_s = stack.settings.worker.idle_connection_seconds
        result = {"workers": workers, "children": children, "task_s": task_s, "idle_connection_seconds": idle_s,
                  "max_connections": limit}  # fmt: skip
        steady, run = _steady(stack, total, task_s, idle_s)
        burst, burst_run = _burst(stack, total, go, kept=workers if environment else 0)
        many, short_run = _short(stack, short)
        retried = int(stack.rows(RETRIED, ([run, burst_run, short_run],))[0][0])
        result |= steady | {"burst": burst, "short": many, "retried": retried}
    options.say(f"connections: {result}")
    return result


def _workers() -> int:
    """As many as the machine can run, or as VARIABLE asks for."""
    if asked := os.environ.get(VARIABLE):
        return int(asked)
    fit = int(psutil.virtual_memory().available * 0.6 / (CHILD_BYTES * CHILDREN))
    return max(1, min(WORKERS, fit, PER_CORE * (os.cpu_count() or 1)))


def _steady(stack: Stack, total: int, task_s: float, idle_s: float) -> tuple[Piece, int]:
    """The connections for the length of a task, after the first tasks of all pool processes have started."""
    run = _started(stack, "steady", total)
    time.sleep(idle_s)
    end = time.monotonic() + task_s
    samples = _samples(stack, lambda: time.monotonic() < end)
    stack.wait_closed([run], LIMIT_S)
    return _summary(samples), run


def _short(stack: Stack, count: int) -> tuple[Piece, int]:
    """The connections from the first start of a short task to the last end."""
    (run,) = stack.trigger(["short"])
    stack.wait(lambda: stack.rows(RUNNING, (run,))[0][0] > 0, LIMIT_S, "the first short task")
    before = time.monotonic()
    samples = _samples(stack, lambda: bool(stack.rows(UNFINISHED, (run,))[0][0]))
    seconds = time.monotonic() - before
    stack.wait_closed([run], LIMIT_S)
    return {"tasks": count, "task_s": SHORT_S, "tasks_per_s": round(count / seconds, 1), **_summary(samples)}, run


def _samples(stack: Stack, goes_on: Callable[[], bool]) -> list[Counter[str]]:
    samples = [_open(stack)]
    while goes_on():
        time.sleep(SAMPLE_S)
        samples.append(_open(stack))
    return samples


def _summary(samples: list[Counter[str]]) -> Piece:
    sums = [sum(sample.values()) for sample in samples]
    names = sorted(set().union(*samples))
    p95 = quantiles(sums, n=20)[-1] if len(sums) > 1 else sums[0]
    return {
        "open": {"mean": round(mean(sums), 1), "p95": p95, "most": max(sums)},
        "open_by_application": {name: round(mean(sample[name] for sample in samples), 1) for name in names},
    }


def _burst(stack: Stack, total: int, go: Path, *, kept: int) -> tuple[Piece, int]:
    """All tasks end at once. The heartbeat of a worker with a pooler keeps one of its connections open: `kept` of all of them."""
    run = _started(stack, "burst", total)
    stack.wait(lambda: _open(stack)["paceline task"] <= kept, LIMIT_S, "all pool processes to close their connections", 0.5)
    quiet, log = _open(stack), stack.servers.logs_folder / "postgres.log"
    size, before = log.stat().st_size, time.monotonic()
    go.touch()
    most = 0
    while stack.rows(RUNNING, (run,))[0][0]:
        most = max(most, sum(_open(stack).values()))
        time.sleep(SAMPLE_S / 5)
    seconds = time.monotonic() - before
    stack.wait_closed([run], LIMIT_S)
    refused = len(REFUSED.findall(log.read_bytes()[size:]))
    return {
        "reports": total, "open_before": sum(quiet.values()), "seconds": round(seconds, 2), "most": most,
        "refused_attempts": refused,
    }, run  # fmt: skip


def _started(stack: Stack, dag_id: str, total: int) -> int:
    """Trigger a run, and wait until nearly all of its tasks are running."""
    (run,) = stack.trigger([dag_id])
    stack.wait(lambda: stack.rows(RUNNING, (run,))[0][0] >= 0.95 * total, LIMIT_S, f"{total} tasks to run", 0.5)
    return run


def _open(stack: Stack) -> Counter[str]:
    return Counter({str(name): int(count) for name, count in stack.rows(OPEN)})
