"""The state of a warm JVM before and after a task: sessions of one JVM, opened as the worker opens them."""

import contextlib
import gc
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from py4j.clientserver import ClientServerConnection
from py4j.protocol import Py4JError
from support import heap
from support.spark_state import found, leave_everything, seen, set_to
from support.waiting import eventually

from paceline.exceptions import FailTask, TaskTimeout
from paceline.operators.spark import run_until_stopped
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Spark
from workers.process.guard import ENDING_S
from workers.spark import causes, conf, java
from workers.spark import conf as configurations
from workers.spark.sessions import jvm_state, session, session_pool
from workers.spark.sessions.session_pool import WarmJvm
from workers.spark.sessions.task import look as look_at

pytestmark = pytest.mark.spark

LIMITS = Spark()


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = Settings(paths=Paths(home=tmp_path_factory.mktemp("home")))
    return configurations.merged(settings, {"spark.hadoop.fs.s3a.secret.key": "of everybody"})


def taken(configuration: dict[str, str]) -> WarmJvm:
    """The warm JVM, started with the class archive like that of a task."""
    return session_pool.take(configuration, {}, LIMITS, java.archive_options(Settings()))


@pytest.fixture(scope="module")
def jvms() -> Iterator[None]:
    yield
    session_pool.shutdown()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits that no JVM exceeds on a busy machine: a JVM that does exceed one is ended, see `ended_by_time`."""
    for module in (session, jvm_state):
        monkeypatch.setattr(module, "CANCEL_S", 60.0)
    for module in (session, session_pool):
        monkeypatch.setattr(module, "ANSWER_S", 120.0)


@pytest.fixture
def jvm(configuration: dict[str, str], jvms: None) -> WarmJvm:
    """The one JVM of this module; a test that makes it unfit has it ended."""
    return taken(configuration)


def run(jvm: WarmJvm, task: Callable[[Any], None]) -> None:
    with session.opened(jvm, {}, name="runs") as spark:
        task(spark)


IS_SPARK_4 = int(pyspark.__version__.partition(".")[0]) >= 4
OF_SPARK_4 = pytest.mark.skipif(not IS_SPARK_4, reason="Spark 3 makes such a table with Hive, which is not there.")
#: What a session gets so that it has a catalog of tables.
KEYS = ("", ".type", ".uri", ".token", ".rest.auth.type", ".oauth2-server-uri", ".warehouse", ".cache-enabled")
CATALOG = {f"spark.sql.catalog.lake{key}": "x" for key in KEYS}
#: Round trips to the JVM for a task, beside those of its code: to take the JVM, to open, watch and close a session, to return the
#: JVM, and to release the objects of all this.
MOST_ROUND_TRIPS = 105


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that py4j sends to a JVM, from now on."""
    commands: list[str] = []
    send = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> str:
        commands.append(command)
        return str(send(connection, command))

    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    return commands


# The first test with the JVM: once a task has run Python, each later one looks at its daemons.
def test_a_task_makes_few_round_trips_to_its_jvm(configuration: dict[str, str], jvm: WarmJvm, round_trips: list[str]) -> None:
    released = jvm.jvm.gateway._gateway_client.finalizer_deque

    def tasks(count: int) -> int:
        """How many round trips so many tasks make, with those of a thread that releases their objects in the JVM."""
        gc.collect()
        eventually(lambda: not released)
        round_trips.clear()
        for _ in range(count):
            warm = taken(configuration)
            assert warm is jvm
            with session.opened(warm, CATALOG, name="counts"):
                look_at(warm)
            session_pool.release(warm, Spark(max_tasks_per_jvm=0))
        gc.collect()
        eventually(lambda: not released)
        return len(round_trips)

    tasks(2)  # asks for the names of classes, once

    assert tasks(10) <= 10 * MOST_ROUND_TRIPS, Counter(round_trips).most_common()


def test_the_jvm_maps_the_archive_that_setup_made(jvm: WarmJvm) -> None:
    file = java.archive_path(Settings())
    if not file.exists():
        pytest.skip("make setup made no archive for this Java and Spark")
    assert str(file) in Path(f"/proc/{jvm.jvm.pid}/maps").read_text()


def test_nothing_of_a_task_is_left_to_the_next(jvm: WarmJvm, tmp_path: Path) -> None:
    before = seen(jvm)

    with session.opened(jvm, {}, name="leaves") as spark:
        leave_everything(spark, tmp_path)
        assert jvm.context.listenerBus().listeners().size() > before["listeners"]

    assert jvm.unfit is None
    assert seen(jvm) == before
    assert before["hadoop"][1:] == ["of everybody", "65536"]
    assert before["active"]


def test_a_failed_task_leaves_as_little(jvm: WarmJvm, tmp_path: Path) -> None:
    before = seen(jvm)

    def fail(spark: Any) -> None:
        leave_everything(spark, tmp_path)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(jvm, fail)

    assert seen(jvm) == before


@pytest.mark.long
def test_two_tasks_one_after_the_other_see_their_own_views_functions_and_conf(jvm: WarmJvm) -> None:
    for number in (11, 12):
        with session.opened(jvm, {}, name="turn") as spark:
            assert (spark.catalog.tableExists("mine"), spark.catalog.functionExists("f")) == (False, False)
            assert spark.conf.get("spark.sql.shuffle.partitions") == "4"
            set_to(spark, number)
            assert found(spark) == (number, number, {number}, str(number))


def test_two_tasks_at_once_in_one_jvm_see_their_own_views_functions_and_conf(jvm: WarmJvm) -> None:
    both, seen_by = threading.Barrier(2, timeout=120), {}

    def task(number: int) -> None:
        spark = jvm.base.newSession()
        for turn in range(3):
            set_to(spark, number + turn)
            both.wait()
            seen_by[number, turn] = found(spark)
            both.wait()

    threads = [threading.Thread(target=task, args=(number,)) for number in (11, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen_by == {(n, turn): (n + turn, n + turn, {n + turn}, str(n + turn)) for n in (11, 21) for turn in range(3)}


def test_jobs_carry_the_name_of_the_task_and_its_keys_are_those_of_its_session(jvm: WarmJvm) -> None:
    with session.opened(jvm, {"spark.sql.shuffle.partitions": "7", "spark.sql.ansi.enabled": "false"}, name="d.t run") as spark:
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
        assert spark.conf.get("spark.sql.ansi.enabled") == "false"
        spark.range(3).count()
        jobs = jvm.context.statusStore().jobsList(None)
        assert (jobs.head().jobGroup().get(), jobs.head().description().get()) == ("d.t run", "d.t run")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            {"spark.sql.files.maxPartitionBytes": "many"},
            "'bytes in BYTE' value|must be specified as bytes",
        ),  # since Spark 4; before
        ({"spark.sql.session.timeZone": "Mars"}, "Cannot resolve the given timezone"),
        ({"spark.locality.wait": "soon"}, "spark.locality.wait"),
    ],
)
def test_a_value_that_its_key_does_not_take_is_one_sentence(jvm: WarmJvm, own: dict[str, str], words: str) -> None:
    ((key, value),) = own.items()

    with pytest.raises(FailTask, match=r"^[^\n]*$") as caught:
        jvm.check(own)

    assert str(caught.value).startswith(f"The conf {key} cannot be {value!r}: ")
    assert re.search(words, str(caught.value))


def test_keys_of_other_packages_are_accepted(jvm: WarmJvm) -> None:
    own = {"spark.hadoop.fs.x.impl": "org.x", "spark.of.mine": "1", "spark.executor.memory": "2g"}

    jvm.check(own)

    assert own.items() <= jvm.checked


def test_the_list_of_keys_that_sessions_cannot_take_is_that_of_the_jvm(jvm: WarmJvm) -> None:
    sql = getattr(getattr(jvm.classes.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")

    static = {key for key in conf.known_keys() if key.startswith(configurations.SESSION_PREFIX) and sql.isStaticConfigKey(key)}

    assert {key for key in static if configurations.takes_session(key)} == set()
    assert static, "the JVM names none"


def test_an_interrupted_call_is_canceled_and_the_jvm_stays(jvm: WarmJvm) -> None:
    def nap(rows: Any) -> Any:
        time.sleep(600)
        return rows

    def collect(spark: Any) -> None:
        interrupt_when(lambda: len(jvm.context.statusTracker().getActiveJobIds()) > 0)
        spark.sparkContext.parallelize([1], 1).mapPartitions(nap).collect()

    with pytest.raises((TaskTimeout, Py4JError)):
        run(jvm, collect)

    assert jvm.unfit is None
    assert seen(jvm)["streams"] == 0
    with session.opened(jvm, {}, name="next") as spark:
        assert spark.range(5).count() == 5


def test_threads_that_waited_for_canceled_work_may_take_a_moment_to_end(jvm: WarmJvm) -> None:
    def write(spark: Any) -> None:
        try:
            spark.sparkContext.parallelize([1], 1).foreach(lambda _: time.sleep(60))
        finally:
            time.sleep(20 * ENDING_S)  # a busy machine

    def collect(spark: Any) -> None:
        interrupt_when(lambda: len(jvm.context.statusTracker().getActiveJobIds()) > 0)
        pool = ThreadPoolExecutor(1)
        try:
            pool.submit(write, spark).result()
        finally:
            pool.shutdown(wait=False)

    with pytest.raises(TaskTimeout):
        run(jvm, collect)

    assert jvm.unfit is None


@pytest.mark.long
def test_a_jvm_that_does_not_let_go_is_unfit(jvm: WarmJvm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CANCEL_S", 0.5)

    def hang(_: Any) -> None:
        caller = jvm.classes.java.lang.Thread.currentThread()
        interrupt_when(lambda: caller.getState().toString() == "TIMED_WAITING")
        jvm.classes.java.lang.Thread.sleep(600_000)

    with pytest.raises((TaskTimeout, Py4JError)):
        run(jvm, hang)

    assert "did not cancel" in str(jvm.unfit)
    session_pool.release(jvm, LIMITS)
    assert not jvm.jvm.alive


def interrupt_when(ready: Any) -> None:
    """TaskTimeout in the main thread, as the guard raises it, once `ready` is true; raised by another thread."""
    import signal

    def stop(*_: object) -> None:
        raise TaskTimeout("too long")

    signal.signal(signal.SIGUSR1, stop)

    def wait() -> None:
        eventually(ready, timeout=120)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=wait, daemon=True).start()


def test_a_stream_stops_with_its_task(jvm: WarmJvm) -> None:
    def follow(spark: Any) -> None:
        query = spark.readStream.format("rate").load().writeStream.format("noop").start()
        interrupt_when(lambda: query.lastProgress is not None)
        run_until_stopped(query)

    with pytest.raises(TaskTimeout):
        run(jvm, follow)

    assert jvm.unfit is None
    assert seen(jvm)["streams"] == 0


def test_progress_counts_jobs_that_began_since(jvm: WarmJvm) -> None:
    with session.opened(jvm, {}, name="before") as spark:
        spark.range(10, numPartitions=7).count()
    ended = time.time()
    eventually(lambda: int(time.time() * 1000) > int(ended * 1000) + 1)  # stages are distinguished by milliseconds
    with session.opened(jvm, {}, name="now") as spark:
        look = look_at(jvm)
        assert look() is None
        spark.range(100, numPartitions=3).write.format("noop").mode("overwrite").save()

        found = eventually(lambda: (now := look()) is not None and now.stages_done and now)

    assert (found.stages, found.stages_done, found.tasks, found.tasks_done, found.tasks_failed) == (1, 1, 3, 3, 0)
    assert found.application_id == jvm.base.sparkContext.applicationId
    json.dumps(found.as_json())


@pytest.mark.long
@pytest.mark.parametrize("every", [60, 120])
def test_progress_counts_more_stages_than_the_jvm_keeps(jvm: WarmJvm, every: int) -> None:
    """Read each `every` stages; the JVM keeps 100."""
    with session.opened(jvm, {}, name="many") as spark:
        look = look_at(jvm)
        for done in range(1, 121):
            spark.sparkContext.parallelize([1], 1).count()
            if done % every == 0:
                seen_now = eventually(lambda done=done: (now := look()) is not None and now.stages_done == done and now)

    assert (seen_now.stages, seen_now.stages_done) == (120, 120)
    if every < 100:
        assert (seen_now.tasks, seen_now.tasks_done) == (120, 120)


def test_a_full_disk_of_logs_does_not_block_the_jvm(jvm: WarmJvm) -> None:
    stderr, full = os.dup(2), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 2)
    try:
        with session.opened(jvm, {}, name="verbose") as spark:
            for _ in range(10):
                jvm.classes.java.lang.System.out.println("x" * 100_000)  # more than a pipe holds
            assert spark.range(5).count() == 5
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(full)

    assert jvm.unfit is None
    assert jvm.jvm.alive


def test_a_file_system_of_a_task_with_its_credentials_does_not_serve_the_next(jvm: WarmJvm, tmp_path: Path) -> None:
    def read(spark: Any) -> list[str]:
        return [row.value for row in spark.read.text("viewfs://teams/data").collect()]

    for team in ("red", "blue"):
        (tmp_path / team).mkdir()
        (tmp_path / team / "data.txt").write_text(team)
        with session.opened(jvm, {}, name=team) as spark:
            spark.conf.set("fs.viewfs.mounttable.teams.link./data", f"file://{tmp_path / team}")
            assert read(spark) == [team]
        assert jvm.unfit is None

    with session.opened(jvm, {}, name="nobody") as spark, pytest.raises(Exception, match="Empty Mount table"):
        read(spark)


def test_a_working_folder_of_a_file_system_does_not_outlive_its_task(jvm: WarmJvm, tmp_path: Path) -> None:
    def local(spark: Any) -> Any:
        return jvm.classes.org.apache.hadoop.fs.FileSystem.get(spark._jsc.hadoopConfiguration())

    with session.opened(jvm, {}, name="moves") as spark:
        before = str(local(spark).getWorkingDirectory())
        local(spark).setWorkingDirectory(jvm.classes.org.apache.hadoop.fs.Path(str(tmp_path)))

    with session.opened(jvm, {}, name="next") as spark:
        assert str(local(spark).getWorkingDirectory()) == before


def test_udfs_of_the_next_task_see_no_process_of_this_one(jvm: WarmJvm, tmp_path: Path) -> None:
    def spoil(_: int) -> int:
        import decimal

        os.environ["MINE"] = "1"
        os.chdir(tmp_path)
        sys.path.insert(0, "/mine")
        sys.modules["mine"] = sys
        decimal.getcontext().prec = 3
        return os.getpid()

    def look(_: int) -> list[Any]:
        import decimal

        return [
            os.environ.get("MINE"), os.getcwd() == str(tmp_path), "/mine" in sys.path, "mine" in sys.modules,  # noqa: PTH109
            decimal.getcontext().prec,
        ]  # fmt: skip

    with session.opened(jvm, {}, name="spoils") as spark:
        assert len(set(spark.sparkContext.parallelize(range(4), 2).map(spoil).collect())) <= 2
    assert jvm.unfit is None

    with session.opened(jvm, {}, name="looks") as spark:
        found = spark.sparkContext.parallelize(range(8), 4).map(look).collect()

    assert found == [[None, False, False, False, 28]] * 8


def small_task(jvm: WarmJvm, number: int) -> Any:
    """Work for every pool of threads that Spark SQL has: stages, a broadcast, a subquery. A weak reference to its session."""
    with session.opened(jvm, {"spark.sql.shuffle.partitions": str(3 + number % 5)}, name="small") as spark:
        spark.range(100).createOrReplaceTempView("mine")
        spark.range(7).createOrReplaceTempView("others")
        spark.sql("select id % 7 as k, count(*) from mine group by 1").collect()
        spark.sql("select /*+ broadcast(others) */ count(*) from mine join others using (id)").collect()
        spark.sql("select count(*) from mine where id > (select avg(id) from others)").collect()
        return jvm.classes.java.lang.ref.WeakReference(spark._jsparkSession)


def remaining(jvm: WarmJvm, sessions: list[Any]) -> int:
    """How many of these, weakly referred to, a collection of Python and of the JVM leaves."""
    gc.collect()
    jvm.classes.java.lang.System.gc()
    return sum(not one.refersTo(None) for one in sessions)


@pytest.mark.long
def test_the_jvm_lets_go_of_the_sessions_of_ended_tasks(jvm: WarmJvm) -> None:
    sessions = [small_task(jvm, number) for number in range(8)]

    # A thread that waits for work may still refer to the last of them.
    eventually(lambda: remaining(jvm, sessions) <= 1, timeout=20, interval=0.5, message=lambda: str(remaining(jvm, sessions)))


#: The tasks after which Spark's bounded history of jobs, stages and queries is full, and those that must not add to the heap.
WARM_UP, MEASURED = 20, 30
#: Objects that a task may leave forever: strings, and samples of metrics up to their bound.
KEPT_BYTES = 20_000


@pytest.fixture
def collected_only_by_us() -> Iterator[None]:
    """Python's own collections, which come by chance, free nothing for us."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.on_demand
@pytest.mark.timeout(600)
def test_the_heap_does_not_grow_with_the_tasks(jvm: WarmJvm, collected_only_by_us: None) -> None:
    def objects_after(tasks: int) -> Counter[str]:
        for number in range(tasks):
            small_task(jvm, number)
            session_pool.release(jvm, Spark(max_tasks_per_jvm=0))
        return heap.settled(jvm)

    first, second, third = objects_after(WARM_UP), objects_after(MEASURED), objects_after(MEASURED)

    # Growth from tasks is in both parts. Single events are not: a larger table, or a thread that still has a session.
    grown = (second - first) & (third - second)
    print("heap:", *(f"{one[heap.BYTES] / 1e6:.1f} MB" for one in (first, second, third)))
    growing = {name: count for name, count in grown.items() if name.startswith("org.apache.spark.") and count >= MEASURED / 2}
    assert not growing, "objects that at least every second task leaves"
    # Besides the first session: that of the last task, and those that Python still refers to before its next collection.
    sessions = [one["org.apache.spark.sql.classic.SparkSession"] for one in (first, second, third)]
    assert max(sessions) <= session_pool.COLLECT_EVERY + 2
    assert grown[heap.BYTES] < MEASURED * KEPT_BYTES


@pytest.mark.parametrize(
    "save",
    [
        lambda spark: spark.range(3).write.saveAsTable("t"),
        lambda spark: spark.range(3).write.mode("overwrite").saveAsTable("t"),
        pytest.param(lambda spark: spark.range(3).writeTo("t").create(), marks=OF_SPARK_4),
        lambda spark: spark.sql("create table t (a int) using parquet"),
        pytest.param(lambda spark: spark.sql("create table t as select 1 as a"), marks=OF_SPARK_4),
        lambda spark: spark.sql("create database d"),
    ],
)
def test_a_table_that_would_end_with_the_jvm_is_refused_in_one_sentence(jvm: WarmJvm, save: Callable[[Any], Any]) -> None:
    with session.opened(jvm, {}, name="saves") as spark:
        for _ in range(2):  # as a retry does
            with pytest.raises(Exception, match="spark-warehouse") as caught:
                save(spark)
            assert str(causes.of_error(caught.value)).startswith(causes.NO_TABLES)

    assert jvm.unfit is None


def leave_a_job(spark: Any) -> None:
    """A thread of the task that starts jobs after the end of the task."""
    session_of_task, begun = spark, threading.Event()

    def work() -> None:
        with contextlib.suppress(Exception):
            while True:
                session_of_task.range(100).count()
                begun.set()

    threading.Thread(target=work, daemon=True, name="goes-on").start()
    assert begun.wait(60)


LASTING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "database": (lambda spark: spark.sql("create database mine location '/nowhere/mine'"), "databases"),
    "function": (lambda spark: spark.sql("create function f as 'org.x.F'"), "functions"),
    "table": (lambda spark: spark.sql("create table t (a int) using parquet location '/nowhere/t'"), "tables"),
    "property": (lambda spark: spark._jvm.java.lang.System.setProperty("aws.secretKey", "mine"), "system properties"),
    "time zone": (
        lambda spark: spark._jvm.java.util.TimeZone.setDefault(spark._jvm.java.util.TimeZone.getTimeZone("Asia/Tokyo")), "time zone"
    ),
    "token": (
        lambda spark: spark._jvm.org.apache.hadoop.security.UserGroupInformation.getLoginUser().addCredentials(secret_key(spark)),
        "user of Hadoop",
    ),
    "files": (lambda spark: spark.sparkContext.addFile(__file__), "files and jars"),
    "thread": (leave_a_job, "thread"),
}  # fmt: skip


def secret_key(spark: Any) -> Any:
    credentials = spark._jvm.org.apache.hadoop.security.Credentials()
    credentials.addSecretKey(spark._jvm.org.apache.hadoop.io.Text("mine"), bytearray(b"key"))
    return credentials


@pytest.mark.parametrize("change", [pytest.param(name, marks=pytest.mark.long) if name == "thread" else name for name in LASTING])
def test_a_change_that_cannot_be_restored_makes_a_jvm_unfit(jvm: WarmJvm, change: str) -> None:
    leave, words = LASTING[change]

    with session.opened(jvm, {}, name="changes") as spark:
        leave(spark)
    # The other changes are made to this JVM as it is now.
    why, jvm.unfit, jvm.state = jvm.unfit, None, None

    assert why is not None and words in why
    if change == "thread":
        session_pool.drop(jvm, why)  # which also ends the thread


def test_a_jvm_is_unfit_if_a_task_closes_the_connection_of_another_thread(jvm: WarmJvm) -> None:
    """The next connection would get its number, and two threads would read each other's answers."""
    asked, go = threading.Event(), threading.Event()

    def other() -> None:
        jvm.context.isStopped()
        asked.set()
        go.wait(60)

    def closes(spark: Any) -> None:
        client = jvm.jvm.gateway._gateway_client
        for connection in set(client.deque) - {client.get_thread_connection()}:
            os.close(connection.socket.fileno())

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert asked.wait(60)
        run(jvm, lambda spark: None)
        assert jvm.unfit is None
        run(jvm, closes)
    finally:
        go.set()
        thread.join()
    assert jvm.unfit == "a task has closed a connection to it"


def test_added_files_and_errors_of_the_jvm_end_it(jvm: WarmJvm, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with session.opened(jvm, {}, name="adds") as spark:
        spark.sparkContext.addFile(str(tmp_path / "mine.txt"))
        written = Path(jvm.classes.java.lang.System.getProperty("java.io.tmpdir"))
        folders = [Path(spark.sparkContext._temp_dir).parent]
        if IS_SPARK_4:
            manager = getattr(getattr(jvm.classes.org.apache.spark.sql.artifact, "ArtifactManager$"), "MODULE$")
            folders.append(Path(manager.artifactRootDirectory().toString()))

    assert "files and jars" in str(jvm.unfit)
    assert {folder.parent for folder in folders} == {written} and list(written.iterdir())
    session_pool.release(jvm, LIMITS)
    assert not jvm.jvm.alive
    assert not written.exists()


@pytest.mark.long
def test_a_jvm_whose_python_daemon_was_killed_serves_no_other_task(jvm: WarmJvm, configuration: dict[str, str]) -> None:
    with session.opened(jvm, {}, name="kills") as spark:
        assert spark.sparkContext.parallelize([1, 2]).map(lambda number: number + 1).sum() == 5
    assert taken(configuration) is jvm

    for child in psutil.Process(jvm.jvm.pid).children():
        child.kill()

    with session.opened(taken(configuration), {}, name="next") as spark:
        assert spark.sparkContext.parallelize([1, 2]).map(lambda number: number + 1).sum() == 5
    assert not jvm.jvm.alive


@pytest.mark.long
def test_an_ended_jvm_leaves_no_thread(configuration: dict[str, str], jvms: None, capfd: pytest.CaptureFixture[str]) -> None:
    def servers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if "serve_forever" in thread.name}

    before = servers()
    one = session_pool.start(configuration, {}, LIMITS, java.archive_options(Settings()))
    with session.opened(one, {}, name="sums") as spark:
        # Spark reports sums of Python functions to a server of PySpark in this process.
        assert spark.sparkContext.parallelize([1, 2]).map(lambda number: number + 1).sum() == 5
    assert len(servers() - before) == 1

    session_pool.end(one)

    eventually(lambda: servers() <= before)
    assert "Traceback" not in capfd.readouterr().err
