"""Seven Spark tasks that pass DataFrames, beside one script that calls the same functions in one session.

Two DAGs have the same tasks: in `whole`, each task takes whole DataFrames; in `pruned`, it names the columns that it takes. No task
reads the text of an order. Cold is a run on a new worker, from its trigger to its end, and a script from the start of its process
to its first answer, so both start a JVM. Warm is a later run on that worker, and a later round of that script.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import duckdb

from bench.flights_conf import CONF
from bench.measure import calibrate
from bench.options import Options, Piece
from bench.stack import Stack

ROWS, SMALL_ROWS = 3_000_000, 3_000
#: The default queue of PySpark tasks, which one worker with one JVM takes beside the default queue.
QUEUES = "default,spark"
RUN_S = 900.0
#: Turns of warm runs after the cold ones, each forward and backward.
WARM = 1
SOURCE = """
    copy (select range::int as id, (range % 365)::int as day, (hash(range) % 40)::int as shop,
                 (hash(range, 1) % 200000)::int as customer, (range % 7)::int as quantity,
                 (hash(range, 2) % 1000)::int - 500 as price, sha256(range::varchar) as text
            from range({rows})) to '{file}' (row_group_size 100000)
"""
STEPS = """\
def orders(spark):
    return spark.read.parquet({source!r}).selectExpr("*", "cast(price as long) * quantity as amount")


def valid(orders):
    return orders.where("amount > 0")


def by_day(valid):
    return valid.groupBy("day").sum("amount").toDF("day", "amount")


def by_shop(valid):
    return valid.groupBy("shop").sum("amount").toDF("shop", "amount")


def by_customer(valid):
    return valid.groupBy("customer").sum("amount").toDF("customer", "amount")


def best(by_customer):
    return by_customer.orderBy("amount", "customer", ascending=False).limit(10)


def report(by_day, by_shop, best):
    return [[list(row) for row in frame.orderBy(*frame.columns).collect()] for frame in (by_day, by_shop, best)]
"""
#: A round for each line of its input.
SCRIPT = """\
import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.config(map={conf}).getOrCreate()
for _ in sys.stdin:
    found = valid(orders(spark))
    print(json.dumps(report(by_day(found), by_shop(found), best(by_customer(found)))), flush=True)
"""
DAGS = """\
from paceline import DAG, task

spark_task = task.pyspark(warm=True)
with DAG("whole", schedule=None):
    found = spark_task(valid)(spark_task(orders)())
    days, shops, customers = spark_task(by_day)(found), spark_task(by_shop)(found), spark_task(by_customer)(found)
    spark_task(report)(days, shops, spark_task(best)(customers))
with DAG("pruned", schedule=None):
    found = spark_task(valid)(spark_task(orders)()[["day", "shop", "customer", "amount"]])
    days, shops = spark_task(by_day)(found[["day", "amount"]]), spark_task(by_shop)(found[["shop", "amount"]])
    customers = spark_task(by_customer)(found[["customer", "amount"]])
    spark_task(report)(days, shops, spark_task(best)(customers))
"""
ENDED = "select extract(epoch from ended_at)::float8 from dag_run where id = %s"
ANSWER = """
    select x.value from xcom x join task_instance t on t.id = x.task_instance_id
     where t.dag_run_id = %s and t.task_id = 'report' and x.key = 'return_value'
"""
WRITTEN = """
    select sum((x.value ->> 'bytes')::bigint)::float8 from xcom x join task_instance t on t.id = x.task_instance_id
     where t.dag_run_id = %s and t.task_id <> 'report' and x.key = 'return_value'
"""
#: Seconds of each task of a run.
TASKS = (
    "select task_id, extract(epoch from ended_at - started_at)::float8 from task_instance where dag_run_id = %s order by started_at"
)
SIDES = ("script", "whole", "pruned")


def measure(options: Options) -> Piece:
    """`frames`: by DAG, the medians of its time over that of the script, cold and warm, with their spread, and what it wrote."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        source = folder / "orders.parquet"
        duckdb.sql(SOURCE.format(rows=SMALL_ROWS if options.small else ROWS, file=source))
        steps = STEPS.format(source=str(source))
        with Stack({"frames.py": steps + DAGS}, concurrency=1, queues=QUEUES) as stack:
            found = Sides(stack=stack, folder=folder, script=steps + SCRIPT.format(conf=CONF))
            for _ in range(options.iterations):
                found.measure(options)
            return {"frames": {dag_id: found.figures(dag_id) for dag_id in SIDES[1:]}}


@dataclass(slots=True)
class Sides:
    """The script and both DAGs, with the seconds of each measured so far: cold, and warm."""

    stack: Stack
    folder: Path
    script: str
    cold: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    warm: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    #: The newest run of each DAG.
    runs: dict[str, int] = field(default_factory=dict)
    answers: list[Any] = field(default_factory=list)

    def measure(self, options: Options) -> None:
        """Each side cold, then all in turns, forward and backward, with the JVMs that are there."""
        self.stack.stop_processes()
        began = time.time()
        with _script(self.folder, self.script) as script:
            self._round(script, self.cold["script"], began)
            for dag_id in SIDES[1:]:
                self.stack.stop_processes()
                self.stack.start()
                self._run(dag_id, self.cold[dag_id])
            for side in (*SIDES, *reversed(SIDES)) * WARM:
                if side == "script":
                    self._round(script, self.warm[side], time.time())
                else:
                    self._run(side, self.warm[side])
        for side in SIDES:
            warm = [round(took, 2) for took in self.warm[side][-2 * WARM :]]
            options.say(f"{side}: cold {self.cold[side][-1]:.1f} s, warm {warm} s ({calibrate():.1f})")

    def _round(self, script: "subprocess.Popen[str]", into: list[float], began: float) -> None:
        assert script.stdin is not None and script.stdout is not None
        with suppress(BrokenPipeError):
            print(file=script.stdin, flush=True)
        line = script.stdout.readline()
        if not line:
            raise AssertionError(f"The script ended with {script.wait()}:\n{(self.folder / 'script.log').read_text()[-4000:]}")
        into.append(time.time() - began)
        self._note(json.loads(line))

    def _run(self, dag_id: str, into: list[float]) -> None:
        began = time.time()
        (run,) = self.stack.trigger([dag_id])
        self.stack.wait_closed([run], RUN_S)
        into.append(self._value(ENDED, run) - began)
        self.runs[dag_id] = run
        self._note(self._value(ANSWER, run))

    def _note(self, answer: Any) -> None:
        self.answers.append(answer)
        if answer != self.answers[0]:
            raise AssertionError("The script and the DAGs have different answers.")

    def _value(self, statement: str, run: int) -> Any:
        return self.stack.rows(statement, (run,))[0][0]

    def figures(self, dag_id: str) -> dict[str, Any]:
        tasks = {name: round(seconds, 2) for name, seconds in self.stack.rows(TASKS, (self.runs[dag_id],))}
        figures: dict[str, Any] = {"mb_written": round(self._value(WRITTEN, self.runs[dag_id]) / 1e6, 1), "task_s": tasks}
        for name, of in (("cold", self.cold), ("warm", self.warm)):
            ratios = [took / script for took, script in zip(of[dag_id], of["script"], strict=True)]
            figures |= {
                f"{name}_over_script": round(median(ratios), 2),
                f"{name}_spread": [round(min(ratios), 2), round(max(ratios), 2)],
                f"{name}_s": [round(took, 2) for took in of[dag_id]],
                f"{name}_script_s": [round(took, 2) for took in of["script"]],
            }
        return figures


@contextmanager
def _script(folder: Path, text: str) -> "Iterator[subprocess.Popen[str]]":
    """The script in a process of its own, which is ended with the block."""
    program = folder / "script.py"
    program.write_text(text, encoding="utf-8")
    with (folder / "script.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(program)], env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        for end in (process.stdin, process.stdout):
            if end is not None:
                end.close()
        process.terminate()
        process.wait()
