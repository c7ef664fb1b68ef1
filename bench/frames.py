"""Seven Spark tasks that pass DataFrames, beside one script that calls the same functions in one session.

Two DAGs have the same tasks: in `whole`, each task takes whole DataFrames; in `pruned`, it names the columns that it takes. No task
reads the text of an order. Cold is a run on a new worker, from its trigger to its end, and a script from the start of its process
to its first answer, so both start a JVM. Warm is a later run on that worker, and a later round of that script.

A second script writes each result to Parquet and reads it again, with the columns of `pruned`: what the same files cost without a
scheduler.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import duckdb

from bench.flights_conf import CONF
from bench.measure import calibrate
from bench.options import Options, Piece
from bench.stack import Stack
from workers.spark.frames import WRITTEN_ONCE

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
#: The same, but each result is written in a folder, and read from there, as the tasks of `pruned` do it.
WRITING = """\
import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.config(map={conf}).getOrCreate()


def stored(frame, name):
    frame.write.mode("overwrite").options(**{options}).parquet({folder!r} + name)
    return spark.read.schema(frame.schema).parquet({folder!r} + name)


for _ in sys.stdin:
    found = stored(valid(stored(orders(spark).select("day", "shop", "customer", "amount"), "orders")), "valid")
    days, shops = stored(by_day(found), "by_day"), stored(by_shop(found), "by_shop")
    print(json.dumps(report(days, shops, stored(best(stored(by_customer(found), "by_customer")), "best"))), flush=True)
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
#: Programs without a scheduler, and DAGs.
SCRIPTS, DAG_IDS = ("script", "writing"), ("whole", "pruned")
SIDES = (*SCRIPTS, *DAG_IDS)


def measure(options: Options) -> Piece:
    """`frames`: by DAG, and for the script that writes, the medians of its time over that of the script, cold and warm, with their
    spread; and what each DAG wrote.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        source = folder / "orders.parquet"
        duckdb.sql(SOURCE.format(rows=SMALL_ROWS if options.small else ROWS, file=source))
        steps = STEPS.format(source=str(source))
        with Stack({"frames.py": steps + DAGS}, concurrency=1, queues=QUEUES) as stack:
            writing = WRITING.format(conf=CONF, options=WRITTEN_ONCE, folder=f"{folder}/written/")
            found = Sides(stack, folder, {"script": steps + SCRIPT.format(conf=CONF), "writing": steps + writing})
            for _ in range(options.iterations):
                found.measure(options)
            return {"frames": {side: found.figures(side) for side in SIDES[1:]}}


@dataclass(slots=True)
class Sides:
    """The scripts and the DAGs, with the seconds of each measured so far: cold, and warm."""

    stack: Stack
    folder: Path
    programs: dict[str, str]
    cold: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    warm: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    #: The newest run of each DAG.
    runs: dict[str, int] = field(default_factory=dict)
    answers: list[Any] = field(default_factory=list)

    def measure(self, options: Options) -> None:
        """Each side cold, then all in turns, forward and backward, with the JVMs that are there."""
        self.stack.stop_processes()
        with ExitStack() as open_scripts:
            scripts = {}
            for name in SCRIPTS:
                began = time.time()
                scripts[name] = open_scripts.enter_context(_script(self.folder / f"{name}.py", self.programs[name]))
                self._round(scripts[name], self.cold[name], began)
            for dag_id in DAG_IDS:
                self.stack.stop_processes()
                self.stack.start()
                self._run(dag_id, self.cold[dag_id])
            for side in (*SIDES, *reversed(SIDES)) * WARM:
                if side in scripts:
                    self._round(scripts[side], self.warm[side], time.time())
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
            logs = "\n".join(log.read_text()[-4000:] for log in self.folder.glob("*.log"))
            raise AssertionError(f"A script ended with {script.wait()}:\n{logs}")
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
            raise AssertionError("The scripts and the DAGs have different answers.")

    def _value(self, statement: str, run: int) -> Any:
        return self.stack.rows(statement, (run,))[0][0]

    def figures(self, side: str) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        if side in self.runs:
            tasks = {name: round(seconds, 2) for name, seconds in self.stack.rows(TASKS, (self.runs[side],))}
            figures = {"mb_written": round(self._value(WRITTEN, self.runs[side]) / 1e6, 1), "task_s": tasks}
        for name, of in (("cold", self.cold), ("warm", self.warm)):
            ratios = [took / script for took, script in zip(of[side], of["script"], strict=True)]
            figures |= {
                f"{name}_over_script": round(median(ratios), 2),
                f"{name}_spread": [round(min(ratios), 2), round(max(ratios), 2)],
                f"{name}_s": [round(took, 2) for took in of[side]],
                f"{name}_script_s": [round(took, 2) for took in of["script"]],
            }
        return figures


@contextmanager
def _script(program: Path, text: str) -> "Iterator[subprocess.Popen[str]]":
    """A script in a process of its own, which is ended with the block."""
    program.write_text(text, encoding="utf-8")
    with program.with_suffix(".log").open("w", encoding="utf-8") as log:
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
