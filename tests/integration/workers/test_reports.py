"""What a task has done is stored, whatever goes wrong with the database, with what follows, or with the log."""

from pathlib import Path
from typing import Any

from support.servers import PostgresServer
from support.waiting import eventually

from scheduler import faults

JOIN = """
with DAG("d", schedule=None):
    first = [task(task_id=name)(lambda: 1)() for name in ("a", "b")]
    first >> task(task_id="join")(lambda: None)() >> task(task_id="last")(lambda: None)()
"""
WAITS = """
import os, time
with DAG("d", schedule=None):
    @task
    def t(ti):
        while not os.path.exists({go!r}):
            time.sleep(0.05)
        ti.xcom_push("key", "value")
        Variable.set("name", "text")
        return 1

    t() >> task(task_id="after")(lambda: None)()
"""


def test_an_error_while_following_leaves_the_report_and_a_scheduler_follows(bench: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text("")
    bench.worker(**{faults.FAULTS: f"@{plan}", faults.FOLDER: str(tmp_path)})
    bench.dag(JOIN)
    for point in ("follow.locked", "follow.commit", "report.after", "follow.published", "follow.rung"):
        (tmp_path / "struck").unlink(missing_ok=True)
        plan.write_text(f"{point}=raise")

        run = bench.scenario.trigger("d", run_id=point)
        bench.wait(run, timeout_s=25)

        assert "raise" in (tmp_path / "struck").read_text()
        assert bench.scenario.run_state(run) == "success", point
        tries = bench.scenario.rows("select distinct state, try_number from task_instance where dag_run_id = %s", run)
        assert tries == [("success", 1)], point
    assert "following failed below d.a" in bench.said


def test_what_a_task_did_while_the_server_took_no_writes_is_stored_once_it_does(
    bench: Any, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = bench.worker(PACELINE_WORKER_HEARTBEAT_TIMEOUT="100")
    run = bench.run(WAITS.format(go=str(go)), t="running")
    try:
        postgres_server.take_writes(False)
        go.touch()
        eventually(lambda: "trying until it does" in worker.said, timeout=20, message=lambda: bench.said)
    finally:
        postgres_server.take_writes(True)
    bench.wait(run)

    assert bench.scenario.rows("select distinct state, try_number from task_instance") == [("success", 1)]
    assert bench.scenario.rows("select key, value #>> '{}' from xcom order by 1") == [("key", "value"), ("return_value", "1")]
    assert bench.scenario.rows("select key from variable") == [("name",)]
