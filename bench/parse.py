"""Parsing of DAG files: new and unchanged files per second, the delay from a saved file to its version, and that of decisions.

A saved file is compared with one parse of the same file in a child forked as the parser forks its own, which does nothing else.
The two are measured in turns, on a stack whose other files are unchanged. Decisions, from the trigger of a run to its task queued,
are measured in turns without and with a file of 500 DAGs that is read and stored again and again.
"""

import gc
import json
import os
import random
import statistics
import threading
import time
from pathlib import Path

from bench.measure import calibrate, quantile, quantiles
from bench.options import Options, Piece
from bench.stack import POLL_S, Stack
from scheduler.dagfiles import fork_server as parsing
from scheduler.store.dags import dags
from scheduler.store.db.database import transact

FILES, SMALL_FILES = 1000, 20
SAVES, SMALL_SAVES = 40, 2
DECISIONS, SMALL_DECISIONS = 200, 4
TEXT = '''"""Take orders in, check them, and report."""

from datetime import timedelta

from paceline import DAG, task

retried = {{"retries": 2, "retry_delay": timedelta(minutes=5)}}

with DAG("dag_{number:04d}", schedule="@yearly", default_args=retried, tags=["bench"]):

    @task
    def extract_{step}() -> list[int]:
        return [1, 2, 3]

    @task
    def check(rows: list[int]) -> list[int]:
        return [row for row in rows if row]

    @task
    def load(rows: list[int]) -> int:
        return len(rows)

    load(check(extract_{step}()))
'''
DECIDED = """
from paceline import DAG
from paceline.operators import EmptyOperator

with DAG("decided", schedule=None, max_active_runs=1000):
    EmptyOperator(task_id="a")
"""
MANY = """from paceline import DAG
from paceline.operators import EmptyOperator

for number in range(500):
    with DAG(f"many_{{number}}", schedule=None, tags=["{step}"]):
        EmptyOperator(task_id="a") >> EmptyOperator(task_id="b") >> EmptyOperator(task_id="c")
"""


def files(count: int) -> dict[str, str]:
    """Texts of DAG files by name, each with a DAG of three tasks."""
    return {f"dag_{number:04d}.py": TEXT.format(number=number, step=0) for number in range(count)}


def measure(options: Options) -> Piece:
    """The part `parse`."""
    count, saves = (SMALL_FILES, SMALL_SAVES) if options.small else (FILES, SAVES)
    # The stack starts without files. They are written when the measurement has started.
    with Stack({}) as stack:
        first_s = _first_sight(stack, count)
        again_s = _again(stack)
        options.say(f"{count} files: {count / first_s:.0f}/s at first sight, {count / again_s:.0f}/s again")
        saved, parsed, calibration = _saved(stack, saves)
        ratio = statistics.median(saved) / statistics.median(parsed)
        options.say(
            f"saved to version {_ms(saved)}; one parse in a fresh child {_ms(parsed)}; ratio {ratio:.2f}"
            f" ({statistics.median(calibration):.1f})"
        )
        quiet, held = _decisions(stack, SMALL_DECISIONS if options.small else DECISIONS)
    options.say(f"a decision {_ms(quiet)}; while 500 DAGs are read and stored {_ms(held)}")
    return {
        "parse": {
            "files": count,
            "files_per_s": round(count / first_s, 1),
            "files_again_per_s": round(count / again_s, 1),
            "saved_to_version_s": round(statistics.median(saved), 5),
            "one_parse_s": round(statistics.median(parsed), 5),
            "saved_over_parse": round(ratio, 2),
            "decision_ms": quantiles([one * 1000 for one in quiet]),
            "decision_while_500_dags_are_read_ms": quantiles([one * 1000 for one in held]),
        }
    }


def _first_sight(stack: Stack, count: int) -> float:
    """Seconds from the first written file until the last one is stored."""
    start = time.perf_counter()
    stack.write(files(count))
    stack.wait_parsed()
    return time.perf_counter() - start


def _again(stack: Stack) -> float:
    """Seconds to parse all files again, unchanged."""
    start = time.perf_counter()
    read_again(stack)
    return time.perf_counter() - start


def read_again(stack: Stack, interval_s: float = POLL_S) -> None:
    """Let all files be parsed again, and wait until they are."""
    (since,) = stack.rows("select clock_timestamp()")[0]
    transact(stack.engine, dags.reparse)
    unread = "select count(*) from dag_file where parsed_at < %s or claimed_by is not null"
    stack.wait(lambda: stack.rows(unread, (since,))[0][0] == 0, 120, "all files to be read again", interval_s)


def _saved(stack: Stack, saves: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds from saving a file until its new version is committed, seconds of one parse of the same file, calibrations."""
    work = parsing.Work(stack.settings.dags_folder, stack.settings.core, stack.settings.scheduler)
    parsing.warm_up(work)
    gc.collect()
    gc.freeze()
    saved: list[float] = []
    parsed: list[float] = []
    calibration: list[float] = []
    for step in range(1, saves + 3):
        path = stack.settings.dags_folder / "dag_0007.py"
        text = TEXT.format(number=7, step=step)
        calibration.append(calibrate())
        for ours in (True, False) if step % 2 else (False, True):
            (saved if ours else parsed).append(_save(stack, path, text) if ours else _parse_in_child(path.name, work))
            # Not synchronized with any process that polls the folder.
            time.sleep(random.uniform(0.05, 0.25))
    gc.unfreeze()
    return saved[2:], parsed[2:], calibration


def _save(stack: Stack, path: Path, text: str) -> float:
    newest = "select max(number) from dag_version where dag_id = 'dag_0007'"
    (before,) = stack.rows(newest)[0]
    start = time.perf_counter()
    path.write_text(text, encoding="utf-8")
    while stack.rows(newest)[0][0] == before:
        assert time.perf_counter() < start + 30, "the file that was saved did not become a version"
        time.sleep(0.0005)
    return time.perf_counter() - start


def _parse_in_child(file: str, work: parsing.Work) -> float:
    start = time.perf_counter()
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_fd, json.dumps(parsing.parse(file, work)).encode()[:4096])
        os._exit(0)
    os.close(write_fd)
    while os.read(read_fd, 65536):
        pass
    os.waitpid(pid, 0)
    os.close(read_fd)
    return time.perf_counter() - start


def _decisions(stack: Stack, count: int) -> tuple[list[float], list[float]]:
    """Sorted seconds from a trigger until its task is queued: with no file to read, and while many.py is read all the time."""
    stack.write({"decided.py": DECIDED, "many.py": MANY.format(step=0)})
    stack.wait_parsed()
    stack.wait(lambda: stack.rows("select count(*) from dag where file = 'many.py'")[0][0] == 500, 60, "500 DAGs")
    _decide(stack, count // 2)
    quiet: list[float] = []
    held: list[float] = []
    for turn in range(4):
        stop = threading.Event()
        writer = threading.Thread(target=_rewrite, args=(stack, stop, turn))
        busy = turn in {1, 2}
        if busy:
            writer.start()
        (held if busy else quiet).extend(_decide(stack, count // 2))
        stop.set()
        if busy:
            writer.join()
    return sorted(quiet), sorted(held)


def _rewrite(stack: Stack, stop: threading.Event, turn: int) -> None:
    """Save many.py with a new version of each of its DAGs again and again, until `stop`."""
    step = 0
    while not stop.wait(0.2):
        step += 1
        stack.write({"many.py": MANY.format(step=f"{turn}_{step}")})


def _decide(stack: Stack, count: int) -> list[float]:
    runs, started = [], []
    for _ in range(count):
        started.append(time.time())
        runs += stack.trigger(["decided"])
        time.sleep(0.02)
    stack.wait_closed(runs)
    rows = stack.rows(
        "select dag_run_id, extract(epoch from queued_at)::float8 from task_instance where dag_run_id = any(%s)", (runs,)
    )
    queued = dict(rows)
    return [queued[run] - at for run, at in zip(runs, started, strict=True)]


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.1f} ms (p95 {quantile(sorted(seconds), 0.95) * 1000:.1f})"
