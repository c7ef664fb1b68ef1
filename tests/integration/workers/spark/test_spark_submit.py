"""Applications that are submitted to a real standalone cluster: run to their end, taken over, cancelled."""

import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from support.http_proxy import Fault, between
from support.spark_applications import APPLICATION, SMALL, dag, java, jobs, log, logs, processes, running_application, turned
from support.spark_cluster import PASSWORD, SparkCluster, running_cluster
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.store.actions import clear, mark
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks
from workers.spark.clusters import protocol, standalone
from workers.spark.clusters.protocol import ClusterUnreachableError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(session_folder: Path) -> Iterator[SparkCluster]:
    """A cluster for this file."""
    with running_cluster(session_folder / "spark") as made:
        yield made


@pytest.fixture(scope="module")
def worker_options() -> dict[str, Any]:
    return {"queues": "default,spark", "PACELINE_SPARK_SUBMIT_TIMEOUT": "1"}


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """The application's file; it goes on once `go` beside it exists."""
    path = tmp_path / "app.py"
    path.write_text(APPLICATION)
    return path


@pytest.fixture
def start(bench: Any, cluster: SparkCluster) -> Callable[..., Any]:
    """A worker for Spark's queues that has the cluster as the connection spark_default."""

    def worker(**environment: str) -> Any:
        uri = environment.pop("uri", cluster.uri())
        return bench.worker(queues="default,spark", PACELINE_CONN_SPARK_DEFAULT=uri, **environment)

    return worker


@pytest.mark.long
def test_in_client_mode_the_driver_is_a_child_whose_ids_and_output_are_kept(
    bench: Any, cluster: SparkCluster, application: Path, start: Any
) -> None:
    start()
    conf = {**SMALL, "spark.my.token": "hush-hush", "spark.driver.host": "127.0.0.1"}
    bench.dag(dag(application, "count", conf=conf, env_vars={"GIVEN": "an env"}))
    run = bench.scenario.trigger("d", run_id="r1")

    job = running_application(bench, cluster)
    progress = eventually(lambda: bench.scenario.rows("select progress from task_progress where progress->'tasks_done' <> '0'"))
    words = [word for process in processes(job) for word in process.info["cmdline"]]
    (application.parent / "go").touch()
    bench.wait(run)

    assert bench.scenario.states(run) == {"t": "success"}, log(bench)
    assert "counted 1000 with an env ***\n" in log(bench) and "hush-hush" not in log(bench)
    assert words and not any("hush-hush" in word for word in words)
    (listed,) = cluster.applications(job["tag"])
    (stored,) = jobs(bench)
    assert (listed["id"], listed["state"]) == (stored["application_id"], "FINISHED")
    assert stored["state"] == "finished" and stored["ended_at"] is not None
    assert stored["ui_url"].startswith("http://127.0.0.1:")
    assert (progress[0][0]["application_id"], progress[0][0]["ui_url"]) == (stored["application_id"], stored["ui_url"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("deaf_s", "lasts_60_s"),
    [(0.0, False), pytest.param(30.0, False, marks=pytest.mark.on_demand), pytest.param(0.0, True, marks=pytest.mark.on_demand)],
)
def test_a_retry_after_a_killed_worker_attaches_and_a_silent_master_is_queried_again(
    bench: Any, cluster: SparkCluster, application: Path, start: Any, deaf_s: float, lasts_60_s: bool
) -> None:
    first = start()
    bench.dag(dag(application, deploy_mode="cluster", retries=1, retry_delay=0, env_vars={"GIVEN": "an env"}))
    run = bench.scenario.trigger("d", run_id="r1")
    job = running_application(bench, cluster)

    first.signal(signal.SIGKILL)
    first.process.wait()
    # As if it had died before it could store them: only the tag is left.
    bench.scenario.sql("update external_job set driver_id = null, application_id = null")
    start()
    eventually(lambda: turned(bench) and "resuming" in log(bench, 2), timeout=120, message=lambda: logs(bench))
    with cluster.deaf():
        eventually(lambda: turned(bench) and "no status of" in log(bench, 2), timeout=120, message=lambda: logs(bench))
        until = time.monotonic() + deaf_s
        eventually(lambda: turned(bench) and time.monotonic() >= until, timeout=deaf_s + 5)
        assert bench.scenario.states(run) == {"t": "running"}
    if not lasts_60_s:
        (application.parent / "go").touch()
    bench.wait(run, timeout_s=120)

    assert bench.scenario.states(run) == {"t": "success"}, log(bench, 2)
    (stored,) = jobs(bench)
    assert (stored["driver_id"], stored["try_number"], stored["state"]) == (job["driver_id"], 2, "finished")
    (listed,) = cluster.applications(job["tag"])
    assert listed["state"] == "FINISHED"
    assert not lasts_60_s or listed["duration"] >= 60_000
    assert "counted 0 with an env" in log(bench, 2)


@pytest.mark.long
def test_clearing_ends_an_application_in_the_cluster_within_ten_seconds(
    bench: Any, cluster: SparkCluster, application: Path, start: Any
) -> None:
    start()
    bench.dag(dag(application, deploy_mode="cluster"))
    run = bench.scenario.trigger("d", run_id="r1")
    job = running_application(bench, cluster)

    transact(bench.scenario.engine, clear.clear, Runs(dag_id="d"), Tasks(), core=bench.settings.core)

    def ended() -> bool:
        drivers = {driver["id"]: driver["state"] for driver in cluster.state()["completeddrivers"]}
        return drivers.get(job["driver_id"]) in {"KILLED", "FINISHED"} and not java(job)

    # No scheduler takes a turn here, so nothing is submitted again.
    eventually(ended, timeout=10, interval=0.1, message=lambda: f"{cluster.state()}\n{logs(bench)}")
    eventually(lambda: bench.scenario.states(run) == {"t": "none"})
    eventually(lambda: jobs(bench)[0]["state"] == "killed")


@pytest.mark.long
def test_a_task_that_takes_too_long_ends_its_application_and_leaves_no_jvm(
    bench: Any, cluster: SparkCluster, application: Path, start: Any
) -> None:
    start()
    bench.dag(dag(application, execution_timeout=timedelta(seconds=8)))
    run = bench.scenario.trigger("d", run_id="r1")
    seen = eventually(lambda: turned(bench) and jobs(bench) and java(jobs(bench)[0]), timeout=60, message=lambda: bench.output)
    assert bench.scenario.states(run) == {"t": "running"}

    bench.wait(run)

    (job,) = jobs(bench)
    assert bench.scenario.states(run) == {"t": "failed"}
    assert "TaskTimeout" in bench.last_line("t")
    assert job["state"] == "killed"
    assert processes(job) == [] and not any(one.is_running() for one in seen)
    assert [one["state"] for one in cluster.applications(job["tag"]) if one["state"] in {"WAITING", "RUNNING"}] == []


@pytest.mark.long
@pytest.mark.parametrize("how", [pytest.param("marked", marks=pytest.mark.on_demand), "stopped"])
def test_a_driver_that_ignores_sigterm_is_gone_once_its_task_is_marked_or_its_worker_stopped(
    bench: Any, cluster: SparkCluster, application: Path, start: Any, how: str
) -> None:
    worker = start(PACELINE_WORKER_GRACE_SEC="0.1")
    bench.dag(dag(application, "deaf"))
    run = bench.scenario.trigger("d", run_id="r1")
    job = running_application(bench, cluster)
    assert java(job)

    if how == "marked":
        transact(bench.scenario.engine, mark.mark, Runs(dag_id="d"), Tasks(), TaskState.FAILED)
    else:
        worker.signal(signal.SIGTERM)
        worker.wait()
    bench.wait(run)

    assert bench.scenario.states(run) == {"t": "failed"}
    assert processes(job) == []
    assert [one["state"] for one in cluster.applications(job["tag"]) if one["state"] in {"WAITING", "RUNNING"}] == []
    eventually(lambda: jobs(bench)[0]["state"] == "killed")


@pytest.mark.on_demand
def test_sql_prints_its_rows_into_the_log_and_a_failed_statement_states_the_reason(bench: Any) -> None:
    bench.worker(queues="default,spark")
    bench.dag("""
        with DAG("d", schedule=None):
            good = SparkSqlOperator(task_id="good", sql="select 6 * 7 as answer", master="local[1]")
            bad = SparkSqlOperator(task_id="bad", sql="select nothing_there", master="local[1]")
            good >> bad
    """)
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, timeout_s=120)

    assert bench.scenario.states(run) == {"good": "success", "bad": "failed"}
    assert "\n42\n" in bench.log("good")
    assert "nothing_there" in bench.last_line("bad")


@pytest.mark.on_demand
def test_an_application_of_a_lost_worker_is_ended_if_no_try_takes_it_over(
    bench: Any, cluster: SparkCluster, application: Path, start: Any
) -> None:
    first = start()
    bench.dag(dag(application, deploy_mode="cluster"))
    run = bench.scenario.trigger("d", run_id="r1")
    job = running_application(bench, cluster)

    first.signal(signal.SIGKILL)
    first.process.wait()
    bench.wait(run)
    assert bench.scenario.states(run) == {"t": "failed"}
    start(PACELINE_SPARK_ABANDONED_CHECK_INTERVAL="0.5")

    eventually(lambda: jobs(bench)[0]["state"] == "killed" and not java(job), timeout=40, message=lambda: bench.output)
    assert "ended the abandoned Spark application" in bench.output


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"application": "/nowhere/app.py"}, "The application /nowhere/app.py of this task is not a file on this worker"),
        ({"conf": {"spark.executor.memroy": "1g"}}, "did you mean 'spark.executor.memory'?"),
        ({"master": "spark://127.0.0.1:1"}, "The Spark master spark://127.0.0.1:1 did not answer within 1 s"),
    ],
)
def test_an_application_that_cannot_be_submitted_fails_immediately_with_one_sentence(
    shared_bench: Any, application: Path, given: dict[str, Any], sentence: str
) -> None:
    run = shared_bench.run(dag(application, **{"master": "spark://127.0.0.1:1", **given}))

    assert shared_bench.scenario.states(run) == {"t": "failed"}
    assert sentence in shared_bench.last_line("t")
    assert jobs(shared_bench) == []


@pytest.mark.skipif(pyspark.__version__.startswith("3."), reason="Spark's JWSFilter came with 4.0")
@pytest.mark.parametrize("password", [None, "another" * 8])
def test_the_master_refuses_requests_that_its_password_did_not_sign(cluster: SparkCluster, password: str | None) -> None:
    base = f"http://127.0.0.1:{cluster.rest_port}/v1/submissions"

    for path, body in (("create", {"action": "CreateSubmissionRequest"}), ("kill/driver-1", {}), ("status/driver-1", None)):
        with pytest.raises(ClusterUnreachableError, match=r"answers 403 .*: give the connection the password") as caught:
            protocol.ask(f"{base}/{path}", body=body, headers=standalone.signed_headers("c", password))
        assert caught.value.refused
    assert protocol.ask(f"{base}/status/driver-1", headers=standalone.signed_headers("c", PASSWORD))["submissionId"] == "driver-1"


@pytest.mark.long
def test_an_application_that_comes_after_its_try_gave_up_is_ended_and_not_run_beside_the_next(
    bench: Any, cluster: SparkCluster, application: Path, start: Any
) -> None:
    with between(cluster.rest_port) as proxy:
        proxy.once("/create", Fault.HELD)
        # Long enough for the released submission, and without a reaper that would rule it out before.
        quick = {"PACELINE_SPARK_NOT_FOUND_PATIENCE": "15", "PACELINE_SPARK_ABANDONED_CHECK_INTERVAL": "600"}
        start(uri=cluster.uri(rest_port=str(proxy.port)), **quick)
        bench.dag(dag(application, deploy_mode="cluster"))
        run = bench.scenario.trigger("d", run_id="r1")
        before = set(cluster.drivers())
        bench.wait(run)
        assert bench.scenario.states(run) == {"t": "failed"}
        assert "It may still appear" in bench.last_line("t")
        assert [job["ended_at"] for job in jobs(bench)] == [None]

        transact(bench.scenario.engine, clear.clear, Runs(dag_id="d"), Tasks(), core=bench.settings.core)
        eventually(
            lambda: turned(bench) and "ending the application of try 1" in log(bench, 2), timeout=120, message=lambda: logs(bench)
        )
        proxy.release()
        (application.parent / "go").touch()
        bench.wait(run, timeout_s=240)

    first, second = jobs(bench)
    drivers = {key: state for key, state in cluster.drivers().items() if key not in before}
    assert bench.scenario.states(run) == {"t": "success"}, logs(bench)
    assert drivers == {first["driver_id"]: "KILLED", second["driver_id"]: "FINISHED"}
    assert (first["state"], second["state"]) == ("killed", "finished")


@pytest.mark.on_demand
def test_an_application_that_a_frozen_worker_submits_after_the_next_try_began_is_ended(
    bench: Any, cluster: SparkCluster, application: Path, start: Any
) -> None:
    with between(cluster.rest_port) as proxy:
        proxy.once("/create", Fault.HELD)
        first = start(uri=cluster.uri(rest_port=str(proxy.port)), PACELINE_SPARK_ABANDONED_CHECK_INTERVAL="600")
        bench.dag(dag(application, deploy_mode="cluster", retries=1, retry_delay=0))
        before = set(cluster.drivers())
        run = bench.scenario.trigger("d", run_id="r1")
        eventually(lambda: turned(bench) and proxy.hit, timeout=120, message=lambda: bench.output)
        children = psutil.Process(first.process.pid).children(recursive=True)
        for process in (first.process, *children):
            process.send_signal(signal.SIGSTOP)
        start(PACELINE_SPARK_NOT_FOUND_PATIENCE="1", PACELINE_SPARK_ABANDONED_CHECK_INTERVAL="600")
        current = running_application(bench, cluster)
        assert (current["try_number"], current["state"]) == (2, "running")

        proxy.release()
        for process in children:  # the worker itself, which would stop the try, stays frozen
            process.send_signal(signal.SIGCONT)

        def ended() -> bool:
            late = set(cluster.drivers()) - before - {current["driver_id"]}
            return [cluster.drivers()[one] for one in late] == ["KILLED"] and "was submitted too late" in log(bench, 1)

        try:
            eventually(ended, timeout=120, message=lambda: f"{cluster.drivers()}\n{logs(bench)}")
        finally:
            first.signal(signal.SIGCONT)
        (application.parent / "go").touch()
        bench.wait(run, timeout_s=120)

    assert bench.scenario.states(run) == {"t": "success"}, logs(bench)
    assert [job["state"] for job in jobs(bench)] == ["killed", "finished"]


@pytest.mark.on_demand
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.CUT_OFF, Fault.TWICE, Fault.GATEWAY])
def test_an_application_whose_submission_got_a_bad_response_is_found_by_its_tag_and_followed(
    bench: Any, cluster: SparkCluster, application: Path, start: Any, fault: Fault
) -> None:
    with between(cluster.rest_port) as answers, between(cluster.ui_port) as page:
        answers.once("/create", fault)
        answers.once("/status", fault)
        for _ in range(3):
            page.once("/json", fault)
        start(uri=cluster.uri(rest_port=str(answers.port), ui_port=str(page.port)))
        (application.parent / "go").touch()
        bench.dag(dag(application, deploy_mode="cluster"))
        run = bench.scenario.trigger("d", run_id="r1")
        before = set(cluster.drivers())
        bench.wait(run, timeout_s=120)
        assert len(answers.hit + page.hit) == 5

    assert bench.scenario.states(run) == {"t": "success"}, log(bench)
    (stored,) = jobs(bench)
    assert (stored["state"], stored["try_number"]) == ("finished", 1)
    assert set(cluster.drivers()) - before == {stored["driver_id"]}


@pytest.mark.on_demand
def test_after_a_master_lost_an_application_the_next_try_submits_it_again(
    bench: Any, application: Path, start: Any, tmp_path: Path
) -> None:
    with running_cluster(tmp_path / "spark") as cluster:
        start(uri=cluster.uri(), PACELINE_SPARK_NOT_FOUND_PATIENCE="5")
        bench.dag(dag(application, deploy_mode="cluster", retries=1, retry_delay=0))
        run = bench.scenario.trigger("d", run_id="r1")
        job = running_application(bench, cluster)

        cluster.restart_master()
        eventually(lambda: turned(bench) and len(jobs(bench)) == 2, timeout=120, message=lambda: logs(bench))
        (application.parent / "go").touch()
        bench.wait(run, timeout_s=120)

        assert bench.scenario.states(run) == {"t": "success"}, logs(bench)
        first, second = jobs(bench)
        assert (first["driver_id"], first["state"], second["state"]) == (job["driver_id"], "failed", "finished")
        assert "the master does not know the driver, for 5 s" in log(bench)
        # A worker of a cluster ends applications that its new master does not have.
        eventually(lambda: not java(job), timeout=120)
