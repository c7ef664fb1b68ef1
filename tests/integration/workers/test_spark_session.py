"""What a task finds in a warm JVM, and what it leaves: sessions of one JVM, opened as the worker opens them."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from support.faulty import full_only
from support.waiting import eventually

from scheduler.exceptions import FailTask, TaskTimeout
from scheduler.setting_sections import Spark
from scheduler.settings import Paths, Settings
from workers.spark import configuration as configurations
from workers.spark import session, warm, watch
from workers.spark.warm import Warm

pytestmark = pytest.mark.spark

LIMITS = Spark()


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = Settings(paths=Paths(home=tmp_path_factory.mktemp("home")))
    return configurations.merged(settings, {"spark.hadoop.fs.s3a.secret.key": "of everybody"})


@pytest.fixture(scope="module")
def jvms() -> Iterator[None]:
    yield
    warm.shutdown()


@pytest.fixture
def jvm(configuration: dict[str, str], jvms: None) -> Warm:
    """The one JVM of this module; a test that makes it unfit has it ended."""
    return warm.take(configuration, {}, LIMITS)


def run(jvm: Warm, task: Callable[[Any], None]) -> None:
    with session.opened(jvm, {}, name="runs") as spark:
        task(spark)


def seen(jvm: Warm) -> dict[str, Any]:
    """All that a task could find of another."""
    with session.opened(jvm, {}, name="looks") as spark:
        context, hadoop = spark.sparkContext, jvm.context.hadoopConfiguration()
        return {
            "views": [table.name for table in spark.catalog.listTables()],
            "global": [table.name for table in spark.catalog.listTables("global_temp")],
            "functions": spark.catalog.functionExists("mine"),
            "database": spark.catalog.currentDatabase(),
            "conf": [spark.conf.get(key, None) for key in ("spark.sql.shuffle.partitions", "spark.mine")],
            "cached": jvm.base._jsparkSession.sharedState().cacheManager().isEmpty(),
            "persisted": context._jsc.getPersistentRDDs().size(),
            "listeners": jvm.context.listenerBus().listeners().size(),
            "properties": [context.getLocalProperty(key) for key in ("mine", "spark.scheduler.pool", "spark.jobGroup.id")],
            "hadoop": [hadoop.get(key) for key in ("mine", "fs.s3a.secret.key", "io.file.buffer.size")],
            "checkpoints": jvm.context.getCheckpointDir().isDefined(),
            "log levels": [str(level) for level in session.State(jvm)._log_levels()],
            "streams": jvm.base._jsparkSession.sharedState().activeStreamingQueries().size(),
            "active": jvm.classes.SparkSession.active().equals(spark._jsparkSession),
            "path": sorted(path for path in sys.path if "spark-" in path),
        }


def leave_everything(spark: Any, folder: Path) -> None:
    context = spark.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    spark.range(3).createOrReplaceTempView("mine")
    spark.range(3).createOrReplaceGlobalTempView("mine")
    spark.udf.register("mine", lambda x: x)
    spark.sql(f"create database if not exists mine location '{folder}'")
    spark.catalog.setCurrentDatabase("mine")
    spark.conf.set("spark.sql.shuffle.partitions", "99")
    spark.conf.set("spark.mine", "1")
    spark.range(100).cache().count()
    context.parallelize([1, 2]).persist().count()
    spark.streams.active  # noqa: B018 - its listener is added with the first use
    spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", str(folder / "c")).start()
    context.setLocalProperty("mine", "1")
    context.setLocalProperty("spark.scheduler.pool", "mine")
    hadoop.set("mine", "1")
    hadoop.set("fs.s3a.secret.key", "mine")
    hadoop.unset("io.file.buffer.size")
    context.setCheckpointDir(str(folder / "checkpoints"))
    context.setLogLevel("OFF")


def test_nothing_of_a_task_is_left_to_the_next(jvm: Warm, tmp_path: Path) -> None:
    before = seen(jvm)

    with session.opened(jvm, {}, name="leaves") as spark:
        leave_everything(spark, tmp_path)
        assert jvm.context.listenerBus().listeners().size() > before["listeners"]

    assert jvm.unfit is None
    assert seen(jvm) == before
    assert before["hadoop"][1:] == ["of everybody", "65536"]
    assert before["active"]


def test_a_failed_task_leaves_as_little(jvm: Warm, tmp_path: Path) -> None:
    before = seen(jvm)

    def fail(spark: Any) -> None:
        leave_everything(spark, tmp_path)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(jvm, fail)

    assert seen(jvm) == before


def test_two_sessions_at_once_see_their_own_views_and_conf(jvm: Warm) -> None:
    both, found = threading.Barrier(2, timeout=60), {}

    def task(name: str) -> None:
        spark = jvm.base.newSession()
        for turn in range(3):
            spark.range(len(name) + turn).createOrReplaceTempView("mine")
            spark.conf.set("spark.sql.shuffle.partitions", str(len(name) + turn))
            both.wait()
            rows = spark.sql("select count(*) from mine").first()[0]
            found[name, turn] = (rows, spark.conf.get("spark.sql.shuffle.partitions"))
            both.wait()

    threads = [threading.Thread(target=task, args=(name,)) for name in ("a", "longer")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {(name, turn): (len(name) + turn, str(len(name) + turn)) for name in ("a", "longer") for turn in range(3)}


def test_jobs_carry_the_name_of_the_task_and_its_keys_are_those_of_its_session(jvm: Warm) -> None:
    with session.opened(jvm, {"spark.sql.shuffle.partitions": "7", "spark.sql.ansi.enabled": "false"}, name="d.t run") as spark:
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
        assert spark.conf.get("spark.sql.ansi.enabled") == "false"
        spark.range(3).count()
        jobs = jvm.context.statusStore().jobsList(None)
        assert (jobs.head().jobGroup().get(), jobs.head().description().get()) == ("d.t run", "d.t run")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"spark.sql.files.maxPartitionBytes": "many"}, "It should be a/an 'bytes in BYTE' value."),
        ({"spark.sql.session.timeZone": "Mars"}, "Cannot resolve the given timezone."),
        ({"spark.locality.wait": "soon"}, "'spark.locality.wait'"),
    ],
)
def test_a_value_that_its_key_does_not_take_is_one_sentence(jvm: Warm, own: dict[str, str], words: str) -> None:
    ((key, value),) = own.items()

    with pytest.raises(FailTask, match=r"^[^\n]*$") as caught:
        jvm.check(own)

    assert str(caught.value).startswith(f"The conf {key} cannot be {value!r}: ")
    assert words.strip("'") in str(caught.value)


def test_keys_of_others_are_let_through(jvm: Warm) -> None:
    jvm.check({"spark.hadoop.fs.x.impl": "org.x", "spark.of.mine": "1", "spark.executor.memory": "2g"})


def test_the_list_of_keys_that_sessions_cannot_take_is_that_of_the_jvm(jvm: Warm) -> None:
    entries = jvm.classes.org.apache.spark.internal.config.ConfigEntry.listAllEntries().toArray()
    sql = getattr(getattr(jvm.classes.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")
    keys = [entry.key() for entry in entries]

    static = {key for key in keys if key.startswith(configurations.SESSION_PREFIX) and sql.isStaticConfigKey(key)}

    assert {key for key in static if configurations.takes_session(key)} == set()
    assert static, "the JVM names none"


def test_an_interrupted_call_is_called_off_and_the_jvm_stays(jvm: Warm) -> None:
    def nap(rows: Any) -> Any:
        time.sleep(60)
        return rows

    started = time.monotonic()

    def collect(spark: Any) -> None:
        interrupt_when(lambda: len(jvm.context.statusTracker().getActiveJobIds()) > 0)
        spark.sparkContext.parallelize([1], 1).mapPartitions(nap).collect()

    with pytest.raises((TaskTimeout, Py4JError)):
        run(jvm, collect)

    assert jvm.unfit is None
    assert time.monotonic() - started < 30
    assert seen(jvm)["streams"] == 0
    with session.opened(jvm, {}, name="next") as spark:
        assert spark.range(5).count() == 5


def test_a_jvm_that_does_not_let_go_is_unfit(jvm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CANCEL_S", 0.5)

    def hang(_: Any) -> None:
        caller = jvm.classes.java.lang.Thread.currentThread()
        interrupt_when(lambda: caller.getState().toString() == "TIMED_WAITING")
        jvm.classes.java.lang.Thread.sleep(600_000)

    with pytest.raises((TaskTimeout, Py4JError)):
        run(jvm, hang)

    assert "did not let go" in str(jvm.unfit)
    warm.release(jvm, LIMITS)
    assert not jvm.jvm.alive


def interrupt_when(ready: Any) -> None:
    """TaskTimeout in the main thread, as the guard raises it, once `ready` says so; asked by another thread."""
    import signal

    def stop(*_: object) -> None:
        raise TaskTimeout("too long")

    signal.signal(signal.SIGUSR1, stop)

    def wait() -> None:
        eventually(ready, timeout=60)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=wait, daemon=True).start()


def test_progress_counts_what_began_since(jvm: Warm) -> None:
    with session.opened(jvm, {}, name="before") as spark:
        spark.range(10, numPartitions=7).count()
    ended = time.time()
    eventually(lambda: int(time.time() * 1000) > int(ended * 1000) + 1)  # stages are told apart by milliseconds
    with session.opened(jvm, {}, name="now") as spark:
        look = watch.look(jvm)
        assert look() is None
        spark.range(100, numPartitions=3).write.format("noop").mode("overwrite").save()

        found = eventually(lambda: (now := look()) is not None and now.stages_done and now)

    assert (found.stages, found.stages_done, found.tasks, found.tasks_done, found.tasks_failed) == (1, 1, 3, 3, 0)
    assert found.application_id == jvm.base.sparkContext.applicationId
    json.dumps(found.as_json())


@full_only
@pytest.mark.xfail(strict=True, reason="each task leaves about 200 kB in the heap; spark.max_jvm_heap ends the JVM in time")
def test_the_heap_does_not_grow_with_the_tasks(jvm: Warm) -> None:
    memory = jvm.classes.java.lang.management.ManagementFactory.getMemoryMXBean()

    def used_after(tasks: int) -> int:
        for number in range(tasks):
            with session.opened(jvm, {"spark.sql.shuffle.partitions": str(3 + number % 5)}, name="small") as spark:
                spark.range(100).createOrReplaceTempView("mine")
                spark.sql("select id % 7 as k, count(*) from mine group by 1").collect()
            warm.release(jvm, LIMITS)
        memory.gc()
        memory.gc()
        used: int = memory.getHeapMemoryUsage().getUsed()
        return used

    first = used_after(15)

    assert used_after(60) < 1.1 * first


def test_added_files_and_errors_of_the_jvm_end_it(jvm: Warm, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with session.opened(jvm, {}, name="adds") as spark:
        spark.sparkContext.addFile(str(tmp_path / "mine.txt"))

    assert "added files" in str(jvm.unfit)
    warm.release(jvm, LIMITS)
    assert not jvm.jvm.alive
