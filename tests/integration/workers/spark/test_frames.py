"""DataFrames passed from task to task: written by a real worker, read with Spark or pandas, deleted with their run."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from support.spark_state import kept
from support.waiting import eventually

from scheduler.settings import data_folder
from scheduler.store.actions import clear, delete
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PIPELINE = """
import os, time
from pathlib import Path

@task.pyspark(retries=1, retry_delay=0)
def numbers(spark, ti):
    from pyspark.sql.functions import udf
    def fail_late(id):
        if id == 999 and ti_try == 1:
            raise ValueError("a bad row")
        return id
    ti_try = ti.try_number
    return spark.range(1000).repartition(2).select(udf(fail_late, "long")("id").alias("id"))

@task.pyspark
def parts(spark, frame) -> dict:
    return {"low": frame.where("id < 10"), "high": [frame.where("id >= 990")], "n": 2}

@task.pyspark
def one(number, frame):
    return frame.where(f"id % 2 = {number}").selectExpr("id", f"{number} as part")

@task
def plain(frame, low, high, mapped):
    first = frame.to_pandas()
    return {
        "rows": frame.rows, "columns": frame.columns, "sum": int(first["id"].sum()), "path": frame.path,
        "low": sorted(low.to_pandas()["id"].tolist()), "high": [len(h.to_pandas()) for h in high],
        "mapped": [m.rows for m in mapped],
    }

@task.pyspark
def union(spark, mapped, low):
    whole = mapped.union()
    return {"rows": whole.count(), "parts": sorted(r.part for r in whole.select("part").distinct().collect()),
            "each": [frame.count() for frame in mapped], "low": low.count(), "empty": spark.range(0).count()}

@task.pyspark
def over(frame):
    return frame.count()

@task.pyspark(do_xcom_push=False)
def unkept(spark):
    return spark.range(3)

@dag(schedule=None)
def d():
    frame = numbers()
    split = parts(frame=frame)
    mapped = one.partial(frame=frame).expand(number=[0, 1])
    plain(frame, split["low"], split["high"], mapped)
    union(mapped=mapped, low=split["low"])
    over.expand(frame=mapped)
    unkept()
d()
"""


def attempts(bench: Any) -> list[str]:
    root = Path(bench.settings.home) / "data"
    return sorted(str(path.relative_to(root)) for path in root.rglob("r*-try*") if path.is_dir())


def value(bench: Any, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
    return bench.scenario.rows(
        "select x.value from xcom x join task_instance t on t.id = x.task_instance_id"
        " where t.task_id = %s and x.key = %s and t.map_index = %s",
        task_id, key, map_index,
    )[0][0]  # fmt: skip


@pytest.mark.long
def test_dataframes_are_passed_by_reference_and_go_with_their_run(bench: Any) -> None:
    bench.worker(queues="default,spark")

    run = bench.run(PIPELINE, timeout_s=400)

    states = bench.scenario.states(run)
    assert {name: state for name, state in states.items() if state != "success"} == {}, bench.output
    reference = value(bench, "numbers")
    assert reference["rows"] == 1000
    assert reference["bytes"] == sum(file.stat().st_size for file in Path(reference["url"][7:]).iterdir())
    assert {file.name.lstrip(".")[:5] for file in Path(reference["url"][7:]).iterdir()} == {"part-"}
    assert value(bench, "plain") == {
        "rows": 1000, "columns": {"id": "long"}, "sum": 499_500, "path": reference["url"][7:],
        "low": list(range(10)), "high": [10], "mapped": [500, 500],
    }  # fmt: skip
    assert value(bench, "union") == {"rows": 1000, "parts": [0, 1], "each": [500, 500], "low": 10, "empty": 0}
    assert [value(bench, "over", map_index=index) for index in (0, 1)] == [500, 500]
    # Nothing is left of the try whose last row failed, nor of an unused result.
    assert bench.column("numbers", "try_number") == 2
    assert [path.rpartition("-")[0].split("-try")[0] + "-try" + path.split("-try")[1][0] for path in attempts(bench)] == [
        f"d/r1/numbers/r{run}-try2", f"d/r1/one/0/r{run}-try1", f"d/r1/one/1/r{run}-try1", f"d/r1/parts/r{run}-try1",
    ]  # fmt: skip

    key = transact(bench.scenario.engine, delete.delete_run, "d", "r1").key
    data_folder.delete_run(bench.settings.data_url, "d", "r1", key)
    assert list((Path(bench.settings.home) / "data").iterdir()) == []


SEVERAL = """
import os, time
from datetime import timedelta
from pathlib import Path

def jvm_of(spark):
    return spark._jvm.java.lang.ProcessHandle.current().pid()

def udf_of(function):
    from pyspark.sql.functions import udf
    return udf(function, "long")("id").alias("id")

@task.pyspark
def first(spark):
    return jvm_of(spark)

@task.pyspark
def bad(spark):
    def fail(id):
        raise ValueError("a bad row")
    return {"good": spark.range(3), "bad": [spark.range(3).select(udf_of(fail))], "other": spark.range(4)}

@task.pyspark(execution_timeout=timedelta(seconds=12))
def slow(spark):
    folder = Path(os.environ["PACELINE_HOME"])
    def held_by(name):
        def hold(id):
            (folder / name).touch()
            while True:
                time.sleep(0.02)
        return hold
    return {name: spark.range(3).coalesce(1).select(udf_of(held_by(name))) for name in ("a", "b")}

@task.pyspark(trigger_rule="all_done")
def last(spark):
    return jvm_of(spark)

@dag(schedule=None)
def d():
    before = first()
    before >> [bad(), slow()] >> last()
d()
"""


@pytest.mark.long
def test_of_several_dataframes_nothing_is_left_if_one_cannot_be_written_or_time_runs_out(bench: Any) -> None:
    worker = bench.worker(queues="default,spark")

    run = bench.run(SEVERAL, timeout_s=400)

    assert bench.scenario.states(run) == {"first": "success", "bad": "failed", "slow": "failed", "last": "success"}
    assert "a bad row" in bench.last_line("bad")
    assert "execution_timeout" in bench.last_line("slow")
    # Both were being written, and the JVM has let go of both.
    assert all((Path(bench.settings.home) / name).exists() for name in ("a", "b"))
    assert kept(value(bench, "first"), value(bench, "last"), worker.output), worker.output
    eventually(lambda: attempts(bench) == [])
    assert bench.scenario.rows("select 1 from xcom where value::text like '%%parquet%%'") == []


HELD = """
import os, time
from pathlib import Path
@dag(schedule=None)
def d():
    @task.pyspark
    def t(spark, ti):
        from pyspark.sql.functions import udf
        number, folder = ti.try_number, Path(os.environ["PACELINE_HOME"])
        def hold(id):
            if number == 1 and id == 19:
                (folder / "holding").touch()
                while not (folder / "go").exists():
                    time.sleep(0.02)
            return id * number
        ti.xcom_push("early", number)
        return spark.range(20).repartition(4).select(udf(hold, "long")("id").alias("id"))
    t()
d()
"""


@pytest.mark.on_demand
def test_a_stale_dispatch_neither_touches_nor_replaces_the_result_of_the_next_dispatch(bench: Any) -> None:
    home = Path(bench.settings.home)
    first = bench.worker(queues="default,spark")
    bench.dag(HELD)
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, timeout_s=90, t="running")
    eventually(lambda: (home / "holding").exists(), timeout=120, message=lambda: bench.output)
    # The worker is cut off: it is declared lost, and its task instance goes to another worker.
    first.signal(signal.SIGSTOP)
    [held] = attempts(bench)
    bench.scenario.sql("update process set stopped_at = clock_timestamp() where name = 'w0'")
    bench.scenario.sql("update task_instance set state = 'up_for_retry', due_at = clock_timestamp()")
    bench.worker(queues="default,spark")

    bench.wait(run, timeout_s=90)
    reference = value(bench, "t")
    (home / "go").touch()
    first.signal(signal.SIGCONT)

    eventually(lambda: held not in attempts(bench), timeout=120, message=lambda: f"{attempts(bench)}\n{bench.output}")
    assert value(bench, "t") == reference
    assert value(bench, "t", "early") == 2
    assert reference["rows"] == 20
    assert attempts(bench) == [reference["url"].removeprefix(f"{bench.settings.data_url}/")]


@pytest.mark.long
def test_a_full_disk_fails_the_task_with_one_sentence_and_leaves_no_reference(bench: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root alone")
    try:
        bench.worker(queues="default,spark", PACELINE_PATHS_DATA_URL=str(disk))
        run = bench.run(
            """
            @dag(schedule=None)
            def d():
                @task.pyspark
                def t(spark):
                    return spark.range(200_000).selectExpr("id", "uuid() as x")
                t()
            d()
            """,
            timeout_s=90,
        )
        assert bench.scenario.states(run) == {"t": "failed"}
        assert "The returned DataFrame could not be written to file://" in bench.last_line("t")
        assert "no space left" in bench.last_line("t") and "paths.data_url" in bench.last_line("t")
        assert bench.scenario.rows("select 1 from xcom") == []
        eventually(lambda: list(disk.iterdir()) == [])  # taken away after the report
    finally:
        for worker in bench.workers:
            worker.process.kill()
            worker.process.wait()
        subprocess.run(["umount", "-l", disk], check=True)
        shutil.rmtree(disk, ignore_errors=True)


PRUNED = """
@task.pyspark
def sales(spark):
    frame = spark.range(100).selectExpr("id", "id % 7 as day", "id * 2 as `the.amount`", "repeat('x', 100) as note")
    return {"some": frame, "all": frame.limit(3)}

@task.pyspark
def by_day(frame):
    return [frame.columns, frame.groupBy().sum("day").first()[0]]

@task
def pandas(frame):
    return [list(frame.columns), int(frame.to_pandas()["the.amount"].sum())]

@task.sql
def duckdb(orders):
    return 'select day, count(*) as n from orders where day < 2 group by day order by day'

@task.sql(engine="spark")
def spark(orders):
    return 'select sum(`the.amount`) from orders where day = 1'

@task.pyspark
def whole(frame):
    return frame.where("id = 1").first().asDict()

def pull(ti, name):
    return ti.xcom_pull(name)["some"]

@task.pyspark
def hidden(spark, ti):
    pull(ti, "sales").to_spark(spark)

@dag(schedule=None)
def d():
    result = sales()
    some = result["some"]
    by_day(some[["day"]]), pandas(some[["the.amount"]]), duckdb(some), spark(some), whole(result["all"])
    by_day.override(task_id="typo")(some[["dya"]])
    hidden() << result.operator
d()
"""


@pytest.mark.long
def test_a_column_that_no_task_takes_is_not_written(bench: Any) -> None:
    bench.worker(queues="default,spark")

    run = bench.run(PRUNED, timeout_s=400)

    states = bench.scenario.states(run)
    assert {name for name, state in states.items() if state == "failed"} == {"hidden", "typo"}, bench.output
    written = value(bench, "sales")
    assert parquet.read_schema(next(Path(written["some"]["url"][7:]).glob("*.parquet"))).names == ["day", "the.amount"]
    assert (written["some"]["rows"], written["some"]["left_out"]) == (100, ["id", "note"])
    assert value(bench, "by_day") == [["day"], 295]
    assert value(bench, "pandas") == [["the.amount"], 9900]
    assert value(bench, "duckdb") == [[0, 15], [1, 15]]
    assert value(bench, "spark") == [[1500]]
    assert value(bench, "whole") == {"id": 1, "day": 1, "the.amount": 2, "note": "x" * 100}
    assert "has no column 'dya'; its columns are day, the.amount, id, note" in bench.last_line("typo")
    assert "The task 'sales' left 'id', 'note' out of its DataFrame" in bench.last_line("hidden")

    # A newer version reads a column that was left out: it must not find it empty, but say what to clear.
    file, core = bench.settings.dags_folder / "example.py", bench.settings.core
    file.write_text(file.read_text().replace('some[["day"]]', 'some[["day", "note"]]'))
    transact(bench.scenario.engine, clear.clear, Runs(dag_id="d"), Tasks(task_ids=("by_day",)), core=core)
    bench.wait(run, timeout_s=100)
    assert bench.scenario.states(run)["by_day"] == "failed"
    assert "The task 'sales' left 'note' out of its DataFrame" in bench.last_line("by_day", 2)

    transact(bench.scenario.engine, clear.clear, Runs(dag_id="d"), Tasks(task_ids=("sales", "by_day")), core=core)
    bench.wait(run, timeout_s=100)
    assert value(bench, "by_day") == [["day", "note"], 295]
