"""The cause of a failure, found in the output of the pinned PySpark's spark-submit: record.py writes outputs/."""

from pathlib import Path

import pytest

from workers.spark import causes

OUTPUTS = Path(__file__).parent / "outputs"
EXPECTED = {
    "analysis": "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `nope` "
    "cannot be resolved. Did you mean one of the following? [`x`, `y`]. "
    '(analysis.py line 6: return spark.sql("select nope from values (1, 2) as t(x, y)"))',
    "no_table": "AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `missing`.`orders` cannot be found. Verify the "
    'spelling and correctness of the schema and catalog. (no_table.py line 5: spark.table("missing.orders").show())',
    "parse": "ParseException: [PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. (line 1, pos 0) "
    '(parse.py line 5: spark.sql("selec 1"))',
    "driver_python": "ZeroDivisionError: division by zero (driver_python.py line 6: return 100 / total)",
    "udf_python": "ZeroDivisionError: integer division or modulo by zero (udf_python.py line 7: return 100 // x)",
    "udf_import": "ModuleNotFoundError: No module named 'nosuchmodule' (udf_import.py line 7: import nosuchmodule)",
    "rdd_python": 'KeyError: 1 (rdd_python.py line 6: return {"a": 1}[x])',
    "missing_path": "AnalysisException: [PATH_NOT_FOUND] Path does not exist: file:/nowhere/at/all. "
    '(missing_path.py line 5: spark.read.parquet("/nowhere/at/all").show())',
    "bad_memory": "Java cannot have a heap of 'lots': write it as 4g or 512m.",
    "bad_master": "SparkException: Master must either be yarn or start with spark, k8s, or local",
    "no_main_class": "Class no.such.Main is missing: name its package in spark.jars.packages, or its jar in spark.jars.",
    "no_file": "There is no file /app/nofile.py.",
}
#: The beginnings of causes that also name a line of ours.
BEGINS = {
    "worker_crash": "A Python worker of Spark died: out of memory (spark.executor.pyspark.memory)",
    "missing_source": "Spark has no data source org.apache.iceberg: name its package in spark.jars.packages",
    "missing_fs": "Class org.apache.hadoop.fs.s3a.S3AFileSystem is missing: name its package",
    "missing_jdbc": "Class org.postgresql.Driver is missing: name its package",
    "arithmetic": "ArithmeticException: [DIVIDE_BY_ZERO] Division by zero.",
    "stopped": "The SparkContext was stopped while it was still needed. (stopped.py line 7",
    "bad_conf": "The value 'many' in the config \"spark.sql.shuffle.partitions\" is invalid. It should be a/an 'int' value.",
    "driver_oom": "The driver ran out of memory: raise spark.driver.memory, or collect and broadcast less. (driver_oom.py line 5",
    "broadcast_oom": "The driver ran out of memory: raise spark.driver.memory",
    "result_size": "Total size of serialized results of 1 tasks (53.0 MiB) is bigger than spark.driver.maxResultSize (10.0 MiB): "
    "collect fewer rows into Python, or raise spark.driver.maxResultSize.",
    "executor_oom": "Executor 0 ran out of memory: raise spark.executor.memory, or make more and smaller partitions.",
    "executor_lost": "Executor 3 was lost: Command exited with code 137 (killed, most often for using more memory than it may: "
    "raise spark.executor.memoryOverhead); 4 tries of the task of Spark failed.",
    "small_heap": "The driver has a heap of 200 MB and Spark needs 450 MB: raise spark.driver.memory to 512m or more.",
    "no_master": "The Spark master does not answer: check its address, and whether it runs.",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_output_of_an_application_becomes_one_or_two_sentences(name: str) -> None:
    assert causes.of_text((OUTPUTS / f"{name}.txt").read_text()) == EXPECTED[name]


@pytest.mark.parametrize("name", BEGINS)
def test_a_known_cause_names_the_remedy(name: str) -> None:
    cause = causes.of_text((OUTPUTS / f"{name}.txt").read_text())

    assert cause is not None
    assert cause.startswith(BEGINS[name])
    assert "\n" not in cause
    assert len(cause) <= causes.MAX_CHARACTERS


def test_an_output_without_an_exception_has_no_cause() -> None:
    assert causes.of_text((OUTPUTS / "exit3.txt").read_text()) is None
    assert causes.of_text("") is None


def test_every_recorded_output_is_judged() -> None:
    assert {path.stem for path in OUTPUTS.glob("*.txt")} == {*EXPECTED, *BEGINS, "exit3"}


def test_an_exception_names_the_line_of_the_author() -> None:
    def load() -> None:
        raise ValueError("no rows for 2026-01-02\nand more")

    with pytest.raises(ValueError, match="no rows") as caught:
        load()

    cause = causes.of_error(caught.value)
    assert cause is not None
    assert cause.startswith("ValueError: no rows for 2026-01-02 (test_causes.py line ")
    assert 'raise ValueError("no rows for 2026-01-02' in cause


def test_a_jvm_that_died_of_memory_is_named_although_python_only_lost_the_connection() -> None:
    output = "26/01/02 03:04:05 ERROR Executor: Exception in task 0.0\njava.lang.OutOfMemoryError: Java heap space\n"

    cause = causes.of_error(ConnectionRefusedError(111, "Connection refused"), output)

    assert cause is not None
    assert "raise spark.driver.memory" in cause


def test_the_error_of_a_batch_of_a_query_is_that_of_its_function() -> None:
    """Spark's log names the folder of tables of each application, and the marks below a line of a query are not indented."""
    output = """26/12/01 00:09:17 INFO SharedState: Warehouse path is 'file:/tmp/paceline-spark-k5/spark-warehouse'.
Traceback (most recent call last):
  File "/dags/application.py", line 21, in <module>
    run_until_stopped(query)
  File "/dags/application.py", line 12, in write
 batch.writeTo("sales.log").append()
^^^^^^^^^^^
pyspark.errors.StreamingQueryException: [STREAM_FAILED] Query [id = e6] ended: Return Message: Traceback (most recent call last):
  File "/dags/application.py", line 12, in write
    raise ValueError("a bad row")
ValueError: a bad row
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
26/12/01 00:09:20 INFO SparkContext: Successfully stopped SparkContext (Uptime: 60428 ms)
"""
    assert causes.of_text(output) == 'ValueError: a bad row (application.py line 12: raise ValueError("a bad row"))'


def test_an_old_complaint_in_the_log_does_not_hide_the_error() -> None:
    output = "26/01/02 03:04:05 WARN Utils: java.lang.ClassNotFoundException: org.example.Optional\n"

    assert causes.of_error(ValueError("wrong"), output) == "ValueError: wrong"


def test_messages_of_yarn_about_memory_are_recognized() -> None:
    # From Spark's source (YarnAllocator) and the NodeManager's diagnostics; not run on a real cluster.
    text = (
        "ExecutorLostFailure (executor 7 exited caused by one of the running tasks) Reason: Container killed by YARN for exceeding "
    )
    text += "physical memory limits. 5.6 GB of 5.5 GB physical memory used. Consider boosting spark.executor.memoryOverhead."

    assert "raise spark.executor.memoryOverhead" in str(causes.of_text(text))


def test_a_long_cause_is_cut() -> None:
    assert len(str(causes.of_error(ValueError("x" * 5000)))) == causes.MAX_CHARACTERS


def test_a_table_without_a_namespace_names_what_to_write() -> None:
    said = "The table orders has no namespace: write one, such as sales.orders, after `create namespace if not exists sales`."

    assert causes.of_text("org.apache.iceberg.exceptions.NoSuchTableException: Invalid table identifier: orders") == said
    assert causes.of_error(ValueError("Invalid table identifier: orders\n\tat org.apache.iceberg.rest")) == said
    assert "namespace:" not in (causes.of_error(ValueError("Invalid table identifier: sales.orders")) or "")


@pytest.mark.parametrize(
    ("message", "begins"),
    [
        (
            "[INVALID_HANDLE.SESSION_CLOSED] The handle 6f0c is invalid. Session was closed. SQLSTATE: HY000",
            "The session of this task on the Connect server is closed",
        ),
        ("[NO_ACTIVE_SESSION] No active Spark session found.", "The session of this task on the Connect server is closed"),
        ('<RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "x">', "The Connect server does not answer"),
        ("<RPC that terminated with:\n\tstatus = StatusCode.UNAUTHENTICATED\n>", "The Connect server does not accept the token"),
    ],
)
def test_an_error_of_the_client_of_a_connect_server_is_one_sentence(message: str, begins: str) -> None:
    cause = causes.of_error(RuntimeError(message))

    assert cause is not None and cause.startswith(begins)
