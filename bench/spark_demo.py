"""The flights demo, compared with one spark-submit for each task, and with one script that runs all stages in one session.

The demo's time is that of its run on a new stack, from the trigger to the end. Its JVM is cold like the others, but starts from
the archive of Spark's classes, if `make setup` created one, as all JVMs of Paceline do. Demo and script run before and after the
submits, so that a change in the speed of the machine affects all alike.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bench.flights_conf import CONF
from bench.options import Options, Piece
from scheduler.embedded import stack
from scheduler.messaging.wakeups import Wakeups
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Broker, Database
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.read import reads
from scheduler.store.runs import manual_runs

DAGS = Path(__file__).parents[1] / "dags"
STEPS = Path(__file__).with_name("flights_steps.py")
RUN_ID = "bench"
PARSED_S, RUN_S, STEP_S = 120.0, 900.0, 300.0
POLL_S = 0.05
RESULT = "carrier_delays.csv"


def measure(options: Options) -> Piece:
    """demo_over_submit and demo_over_script, with the seconds from which they are computed."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        script = [_script(folder / "script-0")]
        demo = [_demo(folder / "demo-0")]
        submit_s = _submits(folder / "submit", months=1 if options.small else 12)
        if not options.small:
            demo.append(_demo(folder / "demo-1"))
            script.append(_script(folder / "script-1"))
        results = {(folder / home / "data" / "flights" / RUN_ID / RESULT).read_bytes() for home in ("demo-0", "script-0")}
        if len(results) > 1:
            raise AssertionError("The script and the demo have different results.")
    demo_s, script_s = statistics.mean(demo), statistics.mean(script)
    options.say(f"flights: demo {demo_s:.1f} s, one spark-submit a task {submit_s:.1f} s, one script {script_s:.1f} s")
    return {
        "demo_over_submit": round(demo_s / submit_s, 3),
        "demo_over_script": round(demo_s / script_s, 2),
        "demo": {
            "demo_s": [round(one, 1) for one in demo],
            "script_s": [round(one, 1) for one in script],
            "submit_s": round(submit_s, 1),
        },
    }


def _demo(home: Path) -> float:
    """Seconds of one run of flights on a stack like that of `paceline demo`."""
    settings = Settings(paths=Paths(home=home, dags_folder=DAGS), database=Database(), broker=Broker())
    with stack.running_stack(settings, say=lambda _: None, waiters=0) as running:
        engine = database.create(running.settings, application="paceline bench")
        wakeups = Wakeups(running.settings)
        try:
            _wait(lambda: _is_parsed(engine), PARSED_S)
            started = time.monotonic()
            run = transact(engine, manual_runs.trigger, "flights", run_id=RUN_ID)
            wakeups.wake(f"run:{run.id}")
            _wait(lambda: transact(engine, reads.run, "flights", RUN_ID)["state"] in {"success", "failed"}, RUN_S)
            took = time.monotonic() - started
            if (state := transact(engine, reads.run, "flights", RUN_ID)["state"]) != "success":
                raise AssertionError(f"The run ended {state}; its logs are in {home / 'logs'}.")
        finally:
            wakeups.close()
            engine.dispose()
    return took


def _is_parsed(engine: Any) -> bool:
    return any(row["dag_id"] == "flights" and row["is_active"] for row in transact(engine, reads.dags))


def _script(home: Path) -> float:
    return _run([sys.executable, str(STEPS), "all"], home)


def _submits(home: Path, *, months: int) -> float:
    """Run each task as a spark-submit, in the order of the demo's worker; tasks without Spark run as a Python process."""
    submit = spark_submit()
    took = _run([sys.executable, str(STEPS), "unpack"], home)
    steps = ["ingest", "validate", "clean", "enrich", *(f"month:{number}" for number in range(1, months + 1))]
    # A smoke test has one month, but the tables need twelve.
    after = ["carrier_table", "monthly_table", "route_table", "condition_table"] if months == 12 else []
    for step in (*steps, *after):
        took += _run([*submit, str(STEPS), step], home)
    return took + (_run([sys.executable, str(STEPS), "report"], home) if after else 0.0)


def spark_submit() -> list[str]:
    """The command of spark-submit with the configuration of the comparison."""
    from pyspark.find_spark_home import _find_spark_home

    confs = (("--conf", f"{key}={value}") for key, value in CONF.items())
    return [f"{_find_spark_home()}/bin/spark-submit", *chain.from_iterable(confs)]


def _run(command: Sequence[str], home: Path) -> float:
    environment = {**os.environ, "PACELINE_HOME": str(home), "PYTHONPATH": os.pathsep.join((str(DAGS), str(DAGS.parent)))}
    started = time.monotonic()
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STEP_S, check=False
    )
    took = time.monotonic() - started
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return took


def _wait(ready: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise AssertionError(f"{timeout_s:.0f} s were too short.")
        time.sleep(POLL_S)
