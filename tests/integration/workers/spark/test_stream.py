"""The streaming example has written every reading exactly once after a kill, a stop and an end."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.dagfiles.load import load
from scheduler.serialized.authored import from_dag
from scheduler.store.actions import clear, mark
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = Path(__file__).parents[4] / "dags" / "stream.py"
STARTS_S = 120.0


class Sink:
    """The rows that the example wrote, by the log of its sink, as Spark reads it."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "data" / "stream" / "readings"

    def files(self) -> list[Path]:
        entries = [
            json.loads(line)
            for batch in (self.folder / "_spark_metadata").glob("[0-9]*")
            for line in batch.read_text(encoding="utf-8").splitlines()[1:]
        ]
        return sorted({Path(entry["path"].removeprefix("file://")) for entry in entries if entry["action"] == "add"})

    def ids(self) -> list[int]:
        import pandas as pd

        return sorted(id_ for file in self.files() for id_ in pd.read_parquet(file)["id"].tolist())

    def grows(self, bench: Any) -> None:
        """Wait until it has more than now."""
        before = len(self.files())

        def grown() -> bool:
            bench.scenario.turn()
            return len(self.files()) > before

        eventually(grown, timeout=STARTS_S, message=lambda: bench.output)


def test_a_stream_that_is_killed_and_stopped_continues_and_writes_every_reading_once(bench: Any) -> None:
    (bench.settings.dags_folder / "stream.py").write_bytes(EXAMPLE.read_bytes())
    dag = load(bench.settings.dags_folder, "stream.py")["stream"]
    bench.scenario.add(from_dag(dag, file="stream.py", core=bench.settings.core, scheduler=bench.settings.scheduler))
    sink = Sink(bench.settings.home)
    run = bench.scenario.trigger("stream", run_id="r1")
    killed = bench.worker(queues="default,spark")
    sink.grows(bench)

    killed.signal(signal.SIGKILL)
    killed.process.wait()
    bench.scenario.sql("update process set heartbeat_at = heartbeat_at - interval '1 minute' where name = 'w0'")
    bench.worker(queues="default,spark")
    sink.grows(bench)

    core = bench.settings.core
    transact(bench.scenario.engine, clear.clear, Runs(dag_id="stream", run_id="r1"), Tasks(task_ids=("readings",)), core=core)
    eventually(lambda: bench.scenario.turn() or bench.scenario.states(run)["readings"] == "running", timeout=STARTS_S)
    sink.grows(bench)
    transact(bench.scenario.engine, mark.mark, Runs(dag_id="stream", run_id="r1"), Tasks(task_ids=("readings",)), TaskState.SUCCESS)
    bench.wait(run)

    assert bench.scenario.states(run) == {"readings": "success"}
    assert bench.column("readings", "try_number") == 3
    ids = sink.ids()
    assert ids == list(range(len(ids)))
    logs = [bench.log_path("readings", number, dag_id="stream").read_text() for number in (2, 3)]
    assert not [log for log in logs if "StreamingQueryException" in log or "did not react" in log]
