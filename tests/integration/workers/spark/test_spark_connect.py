"""PySpark tasks on a real Spark Connect server: their sessions, progress, ends, and what a lost worker leaves behind."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import spark_connect
from support.spark_connect import TOKEN, ConnectServer, running_server
from support.waiting import eventually

WHY = spark_connect.missing()
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.skipif(WHY is not None, reason=str(WHY))]

#: A function that executes on the server until it is interrupted there.
SLEEPS = """
def sleeps(spark):
    spark.range(1).selectExpr("reflect('java.lang.Thread', 'sleep', id + 120000)").collect()
"""
#: A task that waits for a file between two requests, in its first try.
WAITS = """
import os, time

@dag(schedule=None)
def d():
    @task.pyspark(conn_id="cluster", retries=1, retry_delay=0)
    def t(spark, ti=None):
        print("counted", spark.range(2).count(), flush=True)
        while ti.try_number == 1 and not os.path.exists({go!r}):
            time.sleep(0.05)
        return spark.range(4).count()
    t()
d()
"""


@pytest.fixture(scope="module")
def server(session_folder: Path) -> Iterator[ConnectServer]:
    """A server for this file."""
    with running_server(session_folder / "connect") as made:
        yield made


def options(server: ConnectServer, **more: Any) -> dict[str, Any]:
    """The options of a worker with connections to the server."""
    return {
        "queues": "default,spark",
        "PACELINE_CONN_CLUSTER": server.connection(extra={"spark.sql.session.timeZone": "Asia/Tokyo"}),
        "PACELINE_CONN_PLAIN": server.connection(),
        "PACELINE_CONN_STRANGER": server.connection(password="not it"),
        "PACELINE_CONN_NOBODY": json.dumps({"conn_type": "spark_connect", "host": "127.0.0.1", "port": 1}),
        "PACELINE_CONN_MASTER": json.dumps({"conn_type": "spark", "host": "local[1]", "extra": {"spark.app.name": "of master"}}),
        "PACELINE_SPARK_SUBMIT_TIMEOUT": "8",
        **more,
    }


@pytest.fixture(scope="module")
def worker_options(server: ConnectServer) -> dict[str, Any]:
    return options(server)


def sessions(bench: Any) -> list[dict[str, Any]]:
    """The stored sessions, oldest first."""
    names = ("tag", "try_number", "state", "application_id", "ended_at", "kind", "master", "reach")
    rows = bench.scenario.rows(f"select {', '.join(names)} from external_job order by id")
    return [dict(zip(names, row, strict=True)) for row in rows]


def values(bench: Any) -> dict[str, Any]:
    return dict(bench.scenario.rows("select t.task_id, x.value from xcom x join task_instance t on t.id = x.task_instance_id"))


def has_counted(bench: Any) -> bool:
    """Whether the first try of the task of WAITS waits for its file."""
    path: Path = bench.log_path("t")
    return path.exists() and "counted 2" in path.read_text()


def running(server: ConnectServer) -> bool:
    return bool(server.jobs("RUNNING"))


PIPELINE = """
import os

@dag(schedule=None)
def d():
    @task.pyspark(conn_id="cluster", conf={"spark.sql.shuffle.partitions": 7})
    def first(spark, sc):
        from pyspark.sql import SparkSession
        from pyspark.sql.functions import col, udf
        assert SparkSession.builder.getOrCreate() is SparkSession.getActiveSession() is spark
        spark.range(5).createOrReplaceTempView("mine")
        print("the token is", spark.client.token)
        times_ten = udf(lambda value: helper(value), "long")
        total = spark.table("mine").select(times_ten(col("id")).alias("x")).agg({"x": "sum"}).first()[0]
        keys = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
        return {"total": total, "sc": sc, "session": spark.session_id, "conf": [spark.conf.get(key) for key in keys]}
    def helper(value):
        return value * 10
    @task.pyspark(conn_id="cluster")
    def second(spark, before):
        views = [table.name for table in spark.catalog.listTables() if table.isTemporary]
        return {"views": views, "session": spark.session_id, "partitions": spark.conf.get("spark.sql.shuffle.partitions")}
    @task
    def plain(before):
        from pyspark.sql.utils import is_remote
        return {"remote": is_remote(), "variable": os.environ.get("SPARK_REMOTE"), "pid": os.getpid()}
    @task.pyspark(conn_id="cluster")
    def frame(spark, before):
        return spark.range(10).selectExpr("id", "id % 3 as part")
    @task.pyspark(conn_id="cluster")
    def reads(spark, numbers):
        return [numbers.count(), numbers.columns, os.getpid()]
    reads(frame(plain(second(first()))))
d()
"""


def test_each_task_has_a_session_of_its_own_on_the_server(shared_bench: Any, server: ConnectServer) -> None:
    run = shared_bench.run(PIPELINE)

    states = shared_bench.scenario.states(run)
    assert set(states.values()) == {"success"}, shared_bench.output
    found, stored = values(shared_bench), sessions(shared_bench)
    assert (found["first"]["total"], found["first"]["sc"], found["first"]["conf"]) == (100, None, ["7", "Asia/Tokyo"])
    assert (found["second"]["views"], found["second"]["partitions"]) == ([], "2")
    assert found["plain"] | {"pid": 0} == {"remote": False, "variable": None, "pid": 0}
    assert found["frame"]["rows"] == 10
    # The pool process is fit for the next task.
    assert found["reads"] == [10, ["id", "part"], found["plain"]["pid"]]
    assert [one["application_id"] for one in stored[:2]] == [found["first"]["session"], found["second"]["session"]]
    assert {(one["state"], one["kind"], one["ended_at"] is not None) for one in stored} == {("finished", "connect", True)}
    log = shared_bench.log("first")
    assert f"a session on sc://localhost:{server.port}, Spark " in log
    assert "the token is ***" in log and TOKEN not in log
    assert TOKEN not in str(stored) and TOKEN not in shared_bench.output


@pytest.mark.parametrize(
    ("conn_id", "conf", "reason"),
    [
        pytest.param(
            "nobody", {}, "MasterUnreachableError: The Spark master sc://127.0.0.1:1 did not answer within 8 s (nothing answers at "
            "127.0.0.1:1: [Errno 111] Connection refused): start it, or correct the connection 'nobody'.", marks=pytest.mark.long,
        ),
        (
            "stranger", {}, "TokenRefusedError: The Connect server {address} does not accept the token of the connection "
            "'stranger': correct its password.",
        ),
        (
            "cluster", {"spark.driver.memory": "2g"}, "A session on a Connect server does not take the conf spark.driver.memory: "
            "set it on the server, and remove it from the task and its connection.",
        ),
        ("cluster", {"spark.sql.shuffle.partitions": 0}, "The conf spark.sql.shuffle.partitions cannot be '0': "),
    ],
    ids=["no server", "another token", "a conf of the server", "a wrong value"],
)  # fmt: skip
def test_a_session_that_cannot_be_opened_is_one_sentence(
    shared_bench: Any, server: ConnectServer, conn_id: str, conf: dict[str, Any], reason: str
) -> None:
    shared_bench.run(f"""
        @dag(schedule=None)
        def d():
            @task.pyspark(conn_id={conn_id!r}, conf={conf!r}, retries=1, retry_delay=0)
            def t(spark):
                return spark.range(1).count()
            t()
        d()
    """)

    assert shared_bench.scenario.states() == {"t": "failed"}
    assert reason.format(address=f"sc://localhost:{server.port}") in str(shared_bench.column("t", "reason"))
    # What a person must correct in the task is not tried again.
    assert shared_bench.column("t", "try_number") == (1 if conf else 2)
    assert "not it" not in shared_bench.log("t")
    assert all(one["ended_at"] is not None for one in sessions(shared_bench))


TOO_SLOW = f"""
import datetime
{SLEEPS}
@dag(schedule=None)
def d():
    @task.pyspark(conn_id="cluster")
    def before(spark):
        return spark.range(2).count()
    @task.pyspark(conn_id="cluster", execution_timeout=datetime.timedelta(seconds=6))
    def t(spark, before):
        sleeps(spark)
    @task.pyspark(conn_id="cluster", trigger_rule="all_done")
    def after(spark, before):
        return spark.range(3).count()
    after(t(before()))
d()
"""


@pytest.mark.long
def test_an_interrupted_task_leaves_nothing_running_on_the_server(shared_bench: Any, server: ConnectServer) -> None:
    shared_bench.dag(TOO_SLOW)
    run = shared_bench.scenario.trigger("d", run_id="r1")
    eventually(lambda: shared_bench.scenario.turn() or running(server), message=lambda: shared_bench.output)

    shared_bench.wait(run)

    assert shared_bench.scenario.states(run) == {"before": "success", "t": "failed", "after": "success"}
    assert "TaskTimeout" in shared_bench.last_line("t")
    assert not running(server)
    assert [one["state"] for one in sessions(shared_bench)] == ["finished", "killed", "finished"]


@pytest.mark.long
def test_the_server_reports_the_progress_of_a_task(shared_bench: Any) -> None:
    shared_bench.run("""
        @dag(schedule=None)
        def d():
            @task.pyspark(conn_id="cluster")
            def t(spark):
                slow = "reflect('java.lang.Thread', 'sleep', id * 0 + 1000)"
                return spark.range(0, 6, 1, 6).selectExpr(f"concat({slow}, id) as x").groupBy("x").count().count()
            t()
        d()
    """)

    ((progress,),) = shared_bench.scenario.rows("select progress from task_progress")
    assert shared_bench.scenario.states() == {"t": "success"}
    assert progress["tasks"] >= 6 and progress["tasks_done"] >= 6, progress
    assert progress["stages"] >= 2 and progress["running"] == [], progress


LOST = f"""
import os, time
{SLEEPS}
@dag(schedule=None)
def d():
    @task.pyspark(conn_id="cluster", retries=RETRIES, retry_delay=0)
    def t(spark, ti=None):
        if ti.try_number == 1:
            sleeps(spark)
        return spark.range(4).count()
    t()
d()
"""


@pytest.mark.long
@pytest.mark.parametrize("retries", [1, 0], ids=["by the next try", "by a worker of the queue"])
def test_the_session_of_a_lost_worker_is_closed(bench: Any, server: ConnectServer, retries: int) -> None:
    # The client of the server does not even start within the second that the end of an application may take.
    more = {"PACELINE_SPARK_ABANDONED_CHECK_INTERVAL": "0.5", "PACELINE_SPARK_SUBMIT_TIMEOUT": "60"}
    more |= {} if retries else {"PACELINE_SPARK_KILL_TIMEOUT": "1"}
    first = bench.worker(**options(server, **more))
    bench.dag(LOST.replace("RETRIES", str(retries)))
    run = bench.scenario.trigger("d", run_id="r1")
    eventually(lambda: bench.scenario.turn() or running(server), message=lambda: bench.output)

    first.signal(signal.SIGKILL)
    first.process.wait()
    assert running(server)
    second = bench.worker(**options(server, **more))
    bench.wait(run)

    assert bench.scenario.states(run) == {"t": "success" if retries else "failed"}, f"{bench.output}\n{bench.log('t')}"
    # The run may have failed before the second worker has started, and the client of the server starts after that.
    eventually(lambda: not running(server), timeout=180, message=lambda: f"{bench.output}\n{server.log()[-5000:]}")
    eventually(lambda: all(one["ended_at"] is not None for one in sessions(bench)), message=lambda: bench.output)
    assert [one["state"] for one in sessions(bench)] == ["killed", "finished"][: retries + 1]
    # The process of the worker, which forks its pool processes, has not used gRPC.
    assert "grpc" not in Path(f"/proc/{second.process.pid}/maps").read_text()
    assert TOKEN not in bench.output


@pytest.mark.long
def test_a_frozen_worker_cannot_use_its_session_after_the_next_try(bench: Any, server: ConnectServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = bench.worker(**options(server))
    bench.dag(WAITS.format(go=str(go)))
    run = bench.scenario.trigger("d", run_id="r1")
    eventually(lambda: bench.scenario.turn() or has_counted(bench), message=lambda: bench.output)
    frozen = [psutil.Process(first.process.pid), *psutil.Process(first.process.pid).children(recursive=True)]
    for process in frozen:
        process.suspend()
    bench.worker(**options(server))
    bench.wait(run)
    go.touch()
    for process in frozen:
        process.resume()

    assert bench.scenario.states(run) == {"t": "success"}
    eventually(lambda: "failed: " in bench.log("t", 1) or "up for retry" in bench.log("t", 1), message=lambda: bench.log("t", 1))
    assert "The session of this task on the Connect server is closed" in bench.log("t", 1)


@pytest.mark.long
def test_a_restart_of_the_server_is_one_sentence_and_the_retry_works(bench: Any, server: ConnectServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    bench.worker(**options(server))
    bench.dag(WAITS.format(go=str(go)))
    run = bench.scenario.trigger("d", run_id="r1")
    eventually(lambda: bench.scenario.turn() or has_counted(bench), message=lambda: bench.output)

    server.stop()
    server.start()
    go.touch()
    bench.wait(run)

    assert bench.scenario.states(run) == {"t": "success"}
    assert "The session of this task on the Connect server is closed" in bench.last_line("t", 1)
    assert bench.column("t", "try_number") == 2


@pytest.mark.long
def test_a_connection_with_a_master_is_for_the_jvm_of_the_task(shared_bench: Any) -> None:
    shared_bench.run("""
        @dag(schedule=None)
        def d():
            @task.pyspark(conn_id="cluster")
            def there(spark):
                return spark.range(3).count()
            @task.pyspark(conn_id="master")
            def here(spark, sc, before):
                return [sc.master, sc.appName, spark.range(3).count()]
            @task.pyspark(conn_id="cluster")
            def there_again(spark, before):
                return spark.range(3).count()
            @task.pyspark(conn_id="master")
            def here_again(spark, sc, before):
                from pyspark.sql import SparkSession
                assert SparkSession.builder.getOrCreate() is spark
                return [sc.master, sc.appName, spark.range(3).count()]
            here_again(there_again(here(there())))
        d()
    """)

    assert set(shared_bench.scenario.states().values()) == {"success"}, shared_bench.output
    found = values(shared_bench)
    assert found["here"] == found["here_again"] == ["local[1]", "of master", 3]
    assert found["there"] == found["there_again"] == 3


@pytest.mark.long
def test_a_submitted_application_that_stops_its_session_has_ended(shared_bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print('counted', spark.range(5).count())\n"
        "spark.stop()\n"
    )

    shared_bench.run(f"""
        with DAG("d", schedule=None):
            SparkSubmitOperator(task_id="t", conn_id="plain", application={str(file)!r})
    """)

    assert shared_bench.scenario.states() == {"t": "success"}, shared_bench.log("t")
    assert "counted 5" in shared_bench.log("t") and "WARNING" not in shared_bench.log("t")
    assert [one["state"] for one in sessions(shared_bench)] == ["finished"]
