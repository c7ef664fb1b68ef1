"""A run of a DAG on a new worker, beside one plain Spark session that does the same on tables of its own. Both start their JVM.

The tables of the session are Iceberg too, in a folder without a server (Iceberg's Hadoop catalog). That is the least that a
program can do for tables of this format: it publishes nothing together, and one table at a time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from bench.flights_conf import CONF
from bench.measure import calibrate, in_turns
from bench.options import Options
from bench.stack import Stack
from bench.tables import needs
from workers.spark import iceberg

PROGRAM = Path(__file__).with_name("session.py")
#: The default queue of PySpark tasks, which one worker with one JVM takes beside the default queue.
QUEUES = "default,spark"
RUN_S, PROGRAM_S = 900.0, 900.0
LOAD = """\
from paceline import DAG, task


@task.pyspark
def load(spark):
    spark.sql("create namespace if not exists {namespace}")
    for name, path in {files}.items():
        spark.read.parquet(path).writeTo(name).createOrReplace()


with DAG("load", schedule=None):
    load()
"""
#: The name of the catalog on both sides.
CATALOG = "lake"
ENDED = "select extract(epoch from ended_at)::float8 from dag_run where id = %s"
#: A statement and the values of its parameters.
Statement = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The stack of the DAG, and the folder and the conf of the session."""

    stack: Stack
    folder: Path
    conf: Mapping[str, str]

    def dag(self, dag_id: str) -> tuple[float, int]:
        """Seconds from before the trigger to the stored end of a run on a new worker, and the ID of the run."""
        self.stack.start()
        began = time.time()
        (run,) = self.stack.trigger([dag_id])
        self.stack.wait_closed([run], RUN_S)
        ((ended,),) = self.stack.rows(ENDED, (run,))
        self.stack.stop_processes()
        return ended - began, run

    def session(
        self, statements: Sequence[Statement], load: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[float, list[list[Any]]]:
        """Seconds of a program that runs these statements in one session, and the rows of each as JSON has them.

        After them, it copies the files of `load` into the tables of these names.
        """
        answers, output = self.folder / "answers.json", self.folder / "session.log"
        job = {"conf": dict(self.conf), "load": dict(load), "statements": statements, "answers": str(answers)}
        (self.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-P", str(PROGRAM), str(self.folder / "job.json")]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        began = time.monotonic()
        # Into a file: a pipe would be open until the JVM has ended, which nobody waits for.
        with output.open("w", encoding="utf-8") as log:
            ended = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=PROGRAM_S, check=False
            )
        took = time.monotonic() - began
        if ended.returncode:
            raise AssertionError(f"{' '.join(command)} ended with {ended.returncode}:\n{output.read_text()[-4000:]}")
        found: list[list[Any]] = json.loads(answers.read_text(encoding="utf-8"))
        return took, found


@contextmanager
def prepared(files: Mapping[str, str], namespace: str, load: Mapping[str, str]) -> Iterator[Comparison]:
    """Both, with a namespace that has these tables, copied from Parquet files. After that, every jar has been read once.

    MissingError without the jars of Iceberg.
    """
    jars = needs.jars()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        files = {**files, "load.py": LOAD.format(namespace=namespace, files=dict(load))}
        environment = {"PACELINE_TABLES_WAREHOUSE": str(folder / "warehouse"), "PACELINE_TABLES_SPARK_JARS": jars}
        with Stack(files, concurrency=1, queues=QUEUES, environment=environment) as stack:
            stack.stop_processes()
            both = Comparison(stack=stack, folder=folder, conf=_conf(folder / "plain", jars))
            both.session([(f"create namespace if not exists {namespace}", {})], load)
            both.dag("load")
            yield both


def _conf(warehouse: Path, jars: str) -> dict[str, str]:
    """The conf of the session: that of a PySpark task, and a catalog of the same name in a folder."""
    key = f"spark.sql.catalog.{CATALOG}"
    return {
        **CONF,
        "spark.jars": jars,
        **iceberg.extensions({}),
        key: iceberg.CATALOG_CLASS,
        f"{key}.type": "hadoop",
        f"{key}.warehouse": str(warehouse),
        "spark.sql.defaultCatalog": CATALOG,
    }


def pairs(
    options: Options, dag: Callable[[], tuple[float, int]], session: Callable[[], tuple[float, list[list[Any]]]], what: str
) -> tuple[dict[str, Any], list[tuple[int, list[list[Any]]]]]:
    """Run both in turns: the figures, and of each pair the run of the DAG and the rows of the session."""
    measured = []
    for iteration in range(options.iterations):
        (dag_s, run), (session_s, rows) = in_turns(iteration, dag, session)
        measured.append((dag_s, session_s, run, rows))
        options.say(f"{what}: DAG {dag_s:.1f} s, session {session_s:.1f} s, {dag_s / session_s:.2f} ({calibrate():.1f})")
    ratios = [dag_s / session_s for dag_s, session_s, _, _ in measured]
    figures = {
        "over_session": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "dag_s": [round(one[0], 2) for one in measured],
        "session_s": [round(one[1], 2) for one in measured],
    }
    return figures, [(run, rows) for _, _, run, rows in measured]
