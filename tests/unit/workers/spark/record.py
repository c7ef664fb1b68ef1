"""`python tests/unit/workers/spark/record.py [NAME ...]`: writes outputs/<name>.txt again, for a new version of PySpark.

It records the output of spark-submit for applications that fail, which takes some minutes. Left out: lines of INFO and all but
the first frames of a stack; paths are shortened.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

OUTPUTS = Path(__file__).parent / "outputs"
HOME = Path(pyspark.__file__).parent
FRAMES = 4
LIMIT_S = 240
CLUSTER = ("--master", "local-cluster[1,1,512]", "--conf", "spark.executor.memory=512m", "--driver-memory", "512m")
SMALL = ("--driver-memory", "512m", "--conf", "spark.driver.maxResultSize=0")
BEGIN = """import os, signal, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast, udf
spark = SparkSession.builder.getOrCreate()
"""
WIDE = 'selectExpr("id", "repeat(cast(id as string), 20) as text")'
#: Each begins at line 5.
APPLICATIONS = {
    "analysis": 'def load():\n    return spark.sql("select nope from values (1, 2) as t(x, y)")\n\nload().show()',
    "no_table": 'spark.table("missing.orders").show()',
    "parse": 'spark.sql("selec 1")',
    "driver_python": "def share(total):\n    return 100 / total\n\nprint(share(0))",
    "udf_python": '@udf("long")\ndef ratio(x):\n    return 100 // x\n\nspark.range(3).select(ratio("id")).show()',
    "udf_import": '@udf("long")\ndef ratio(x):\n    import nosuchmodule\n\nspark.range(3).select(ratio("id")).show()',
    "rdd_python": 'def key(x):\n    return {"a": 1}[x]\n\nspark.sparkContext.parallelize([1, 2]).map(key).collect()',
    "worker_crash": '@udf("long")\ndef leave(x):\n    os._exit(3)\n\nspark.range(3).select(leave("id")).show()',
    "missing_source": 'spark.read.format("org.apache.iceberg").load("/tmp/x").show()',
    "missing_fs": 'spark.read.parquet("s3a://bucket/x").show()',
    "missing_path": 'spark.read.parquet("/nowhere/at/all").show()',
    "missing_jdbc": 'spark.read.format("jdbc").options(url="jdbc:postgresql://127.0.0.1:1/x", dbtable="t",\n'
    '    driver="org.postgresql.Driver").load().show()',
    "arithmetic": 'spark.range(3).selectExpr("10 / id").show()',
    "stopped": "sc = spark.sparkContext\nspark.stop()\nsc.parallelize([1]).count()",
    "exit3": "sys.exit(3)",
    "bad_conf": "spark.range(1).show()",
    "bad_memory": "spark.range(1).show()",
    "bad_master": "spark.range(1).show()",
    "no_master": "spark.range(1).show()",
    "small_heap": "spark.range(1).show()",
    "driver_oom": f"spark.range(40_000_000).{WIDE}.collect()",
    "broadcast_oom": f'spark.range(10).join(broadcast(spark.range(30_000_000).{WIDE}), "id").count()',
    "result_size": f"spark.range(3_000_000).{WIDE}.collect()",
    "executor_oom": f'spark.range(30_000_000).{WIDE}.selectExpr("size(collect_list(text))").show()',
    "executor_lost": "def kill(rows):\n    import psutil\n    os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)\n\n"
    "spark.sparkContext.parallelize(range(2), 1).mapPartitions(kill).collect()",
}
OPTIONS = {
    "bad_conf": ("--conf", "spark.sql.shuffle.partitions=many"),
    "bad_memory": ("--driver-memory", "lots"),
    "bad_master": ("--master", "nonsense:1"),
    "no_master": ("--master", "spark://127.0.0.1:1"),
    "small_heap": ("--driver-memory", "200m"),
    "driver_oom": SMALL,
    "broadcast_oom": SMALL,
    "result_size": ("--conf", "spark.driver.maxResultSize=10m"),
    "executor_oom": (*CLUSTER, "--conf", "spark.task.maxFailures=1"),
    "executor_lost": CLUSTER,
}
#: Without an application of ours: a class that the jar does not have, and a file that is not there.
COMMANDS = {
    "no_main_class": ("--class", "no.such.Main", str(next((HOME / "jars").glob("jackson-core-2*.jar")))),
    "no_file": ("/app/nofile.py",),
}


def main(names: list[str]) -> None:
    for name in names or [*APPLICATIONS, *COMMANDS]:
        with tempfile.TemporaryDirectory() as folder:
            output = submit(name, Path(folder))
        (OUTPUTS / f"{name}.txt").write_text(shortened(output, folder))
        print(name)


def submit(name: str, folder: Path) -> str:
    """The output of spark-submit with its errors."""
    command = COMMANDS.get(name)
    if command is None:
        (folder / f"{name}.py").write_text(f"{BEGIN}{APPLICATIONS[name]}\n")
        command = (str(folder / f"{name}.py"),)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_HOME": str(HOME)}
    conf = ("spark.ui.enabled=false", "spark.driver.bindAddress=127.0.0.1", "spark.driver.host=127.0.0.1")
    options = [part for one in conf for part in ("--conf", one)]
    master = OPTIONS.get(name, ())
    options += [] if "--master" in master else ["--master", "local[1]"]
    done = subprocess.run(
        [str(HOME / "bin" / "spark-submit"), *options, *master, *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.stdout


def shortened(output: str, folder: str) -> str:
    """The output without irrelevant lines and without traces of the recording machine."""
    lines, frames = [], 0
    output = output.replace(folder, "/app").replace(sys.executable, "/opt/venv/bin/python")
    for line in output.replace(str(HOME), "/lib/site-packages/pyspark").splitlines():
        frames = frames + 1 if line.startswith(("\tat ", "    at ")) else 0
        if frames <= FRAMES and not re.match(
            r"\S+ \S+ INFO |WARNING: |Using |Setting |To adjust|\S+ \S+ WARN (Utils|NativeCode)", line
        ):
            lines.append(re.sub(r"\b(?!127\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "10.0.0.1", line)[:600])
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
