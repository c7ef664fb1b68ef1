"""A stack whose tasks write three tables each, and what must hold whatever fails: the ledger of the test knows every row.

Each run reads the three tables, creates a table and drops it, and appends its ID to each of the three. Two runs at a time have read
before one of them publishes, so one has to move its appends onto those of the other. At the end, it writes epochs to a fourth table
as a streaming query does, with a checkpoint. A folder tells the tasks where to fail.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import StaticTable
from sqlalchemy import Engine

from scheduler.catalog import gc
from scheduler.catalog.tables import Tables
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs
from support.faulty import FaultyStack, alive
from support.waiting import eventually

NAMES = ("a", "b", "c")
#: The table of epochs, and how many each run writes.
STREAMED, EPOCHS = "s", 2
SCHEMA = pa.schema([("run", pa.string()), ("attempt", pa.int64())])
#: In the code of the author.
STEPS = ("begin", "given", "read", "created", "dropped", "before a", "after a", "before b", "after b", "after c")
DAG = """
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
from paceline import dag, task
from pyiceberg.exceptions import CommitFailedException

FOLDER = Path({folder!r})
NAMES = ("a", "b", "c")

def reach(step):
    plan = FOLDER / "step"
    if plan.exists() and plan.read_text() == step:
        plan.rename(FOLDER / "struck")
        os.kill(os.getpid(), signal.SIGKILL)

def meet(run_id):
    (FOLDER / "met" / run_id).touch()
    both = [FOLDER / "met" / f"{{run_id[:-1]}}{{each}}" for each in range(2)]
    deadline = time.monotonic() + 5
    while not all(path.exists() for path in both) and time.monotonic() < deadline:
        time.sleep(0.01)

QUERY, EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"

def commit(table, query, epoch):
    # As Iceberg's sink does: again upon the rows of others, and not if the table has the epoch.
    for _ in range(50):
        snapshots = {{one.snapshot_id: one for one in table.refresh().snapshots()}}
        snapshot = table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary.additional_properties
            if summary.get(QUERY) == query and int(summary[EPOCH]) >= epoch:
                return
            snapshot = snapshots.get(snapshot.parent_snapshot_id)
        rows = pa.table({{"run": [query], "attempt": pa.array([epoch], pa.int64())}})
        try:
            return table.append(rows, snapshot_properties={{QUERY: query, EPOCH: str(epoch)}})
        except CommitFailedException:
            time.sleep(0.05)
    raise RuntimeError("others were faster each time")

def stream(table, query):
    checkpoint = FOLDER / "checkpoints" / query
    for epoch in range(int(checkpoint.read_text()) if checkpoint.exists() else 0, {epochs}):
        commit(table, query, epoch)
        checkpoint.with_suffix(".new").write_text(str(epoch + 1))
        checkpoint.with_suffix(".new").replace(checkpoint)

@dag(schedule=None, max_active_runs=64)
def writes():
    @task(retries=50, retry_delay=0)
    def write(ti=None):
        reach("begin")
        namespace = ti.run_id.partition("-")[0]
        catalog = ti.catalog
        name = f"{{ti.run_id}}.{{ti.try_number}}"
        (FOLDER / "tokens" / name).write_text(f"{{catalog.properties['uri']}} {{catalog.properties['token']}}")
        reach("given")
        tables = {{name: catalog.load_table(f"{{namespace}}.{{name}}") for name in NAMES}}
        seen = {{name: sorted(table.scan().to_arrow()["run"].to_pylist()) for name, table in tables.items()}}
        if len(set(map(tuple, seen.values()))) > 1:
            (FOLDER / "mixes" / name).write_text(repr(seen))
        reach("read")
        meet(ti.run_id)
        rows = pa.table({{"run": [ti.run_id], "attempt": pa.array([ti.try_number], pa.int64())}})
        scratch = catalog.create_table(f"{{namespace}}.scratch_{{ti.run_id}}", rows.schema)
        scratch.append(rows)
        reach("created")
        catalog.drop_table(f"{{namespace}}.scratch_{{ti.run_id}}")
        reach("dropped")
        for name, table in tables.items():
            reach(f"before {{name}}")
            table.append(rows)
            reach(f"after {{name}}")
        stream(catalog.load_table(f"{{namespace}}.{streamed}"), ti.run_id)
        if (FOLDER / "fails").exists() and ti.try_number == 1:
            raise RuntimeError("the first try fails on purpose")
    write()

writes()
"""


class Reader(threading.Thread):
    """Reads the three tables as of one moment, again and again, and notes each moment at which they differ."""

    def __init__(self, engine: Engine, io: FileIO, namespace: str) -> None:
        super().__init__(daemon=True)
        self._engine, self._io, self._namespace, self._ending = engine, io, namespace, threading.Event()
        self.mixes: list[dict[str, list[str]]] = []
        self.reads = 0

    def run(self) -> None:
        while not self._ending.wait(0.05):
            with contextlib.suppress(Exception):  # a server that is away
                rows = self.read()
                self.reads += 1
                if len({tuple(each) for each in rows.values()}) > 1:
                    self.mixes.append(rows)

    def read(self) -> dict[str, list[str]]:
        """The IDs of the runs in each table."""
        statement = "select table_name, metadata_location from iceberg_tables where table_namespace = %s and table_name = any(%s)"
        with self._engine.begin() as connection:
            found = connection.exec_driver_sql(statement, (self._namespace, list(NAMES))).all()
        return {
            name: sorted(StaticTable.from_metadata(location, self._io.properties).scan().to_arrow()["run"].to_pylist())
            for name, location in found
        }

    def end(self) -> None:
        self._ending.set()
        self.join(60)


@dataclass
class Survival:
    """Runs, faults and judgements, over one stack."""

    faulty: FaultyStack
    tables: Tables
    person: RestCatalog
    folder: Path
    #: The faults found, in words.
    found: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    reads: int = 0
    #: Files that nothing needs and gc has not deleted, by the point.
    orphans: dict[str, int] = field(default_factory=dict)
    namespaces: int = 0

    @contextlib.contextmanager
    def judged(self, point: str) -> Iterator["Round"]:
        """New tables for the runs of a block, which are judged at its end."""
        self.namespaces += 1
        namespace = f"n{self.namespaces:03d}"
        self.person.create_namespace(namespace)
        for name in (*NAMES, STREAMED):
            self.person.create_table(f"{namespace}.{name}", SCHEMA, properties={"paceline.rebase-appends": "true"})
        reader = Reader(self.faulty.engine, self.tables.warehouse.io, namespace)
        reader.start()
        one = Round(self, namespace)
        yield one
        reader.end()
        self.reads += reader.reads
        self.runs += len(one.run_ids)
        self.found += [f"{point}: a reader saw {mix}" for mix in reader.mixes[:1]]
        for mix in (self.folder / "mixes").iterdir():
            self.found.append(f"{point}: the try {mix.name} read {mix.read_text()}")
            mix.unlink()
        for name, rows in reader.read().items():
            if rows != sorted(one.run_ids):
                self.found.append(f"{point}: table {name} has {dict(Counter(rows) - Counter(one.run_ids))} too much,"
                                  f" and misses {dict(Counter(one.run_ids) - Counter(rows))}")  # fmt: skip
        epochs = self.person.load_table(f"{namespace}.{STREAMED}").scan().to_arrow().to_pylist()
        counted = Counter((row["run"], row["attempt"]) for row in epochs)
        if counted != Counter((run_id, epoch) for run_id in one.run_ids for epoch in range(EPOCHS)):
            self.found.append(f"{point}: the epochs of table {STREAMED} are {dict(counted)}")
        self._attack(point)

    def _attack(self, point: str) -> None:
        """The token of each try that has ended is refused."""
        for path in (self.folder / "tokens").iterdir():
            uri, token = path.read_text().split()
            path.unlink()
            with contextlib.suppress(requests.RequestException):  # its worker is gone
                answer = requests.get(f"{uri}/v1/namespaces", headers={"Authorization": f"Bearer {token}"}, timeout=5)
                if answer.status_code != 401:
                    self.found.append(f"{point}: the token of the ended try {path.name} was accepted")

    def collect(self) -> gc.Collected:
        """Delete what dead tries left."""
        return gc.collect(self.faulty.stack.settings, self.faulty.engine, older_s=0)

    def unneeded(self, namespace: str) -> set[str]:
        """The files of a namespace that no current table needs."""
        folder = Path(self.tables.warehouse.folder(namespace).removeprefix("file://"))
        files = {f"file://{path}" for path in folder.rglob("*") if path.is_file()}
        for name in (*NAMES, STREAMED):
            table = self.person.load_table(f"{namespace}.{name}")
            files -= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
            for snapshot in table.snapshots():
                files.discard(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    files.discard(manifest.manifest_path)
                    files -= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
        return files


@dataclass
class Round:
    """The runs of one block, with their tables."""

    survival: Survival
    namespace: str
    run_ids: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start two runs at once."""
        for each in range(2):
            run_id = f"{self.namespace}-{len(self.run_ids) // 2}-{each}"
            transact(self.survival.faulty.engine, manual_runs.trigger, "writes", run_id=run_id)
            self.run_ids.append(run_id)

    def settle(self, timeout: float = 180) -> None:
        """Wait until all runs have succeeded."""
        faulty = self.survival.faulty
        faulty.settle(timeout=timeout)
        states = dict(faulty.rows("select run_id, state from dag_run where run_id = any(%s)", self.run_ids))
        assert set(states.values()) == {"success"} and len(states) == len(self.run_ids), f"{states}\n{faulty.stack.logs()}"

    def freeze(self, timeout: float = 60) -> None:
        """Stop the worker of the process that stopped at a point; continue it after its tasks have succeeded elsewhere."""
        faulty = self.survival.faulty
        eventually(faulty.struck, timeout=timeout, message=faulty.stack.logs)
        (pid,) = faulty.struck()
        worker = parent(pid)
        os.killpg(worker, signal.SIGSTOP)
        try:
            faulty.inject("")
            self.settle()
        finally:
            for each in (worker, pid):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each, signal.SIGCONT) if each == worker else os.kill(each, signal.SIGCONT)
        registered = "select 1 from process where pid = %s and stopped_at is null"
        eventually(lambda: not alive(worker) or faulty.rows(registered, worker), timeout=60, message=faulty.stack.logs)


def parent(pid: int) -> int:
    """The process that started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def prepared(folder: Path) -> dict[str, str]:
    """The DAG file of the tasks, and the folder that tells them where to fail."""
    for name in ("met", "tokens", "mixes", "checkpoints"):
        (folder / name).mkdir(parents=True)
    return {"writes.py": DAG.format(folder=str(folder), epochs=EPOCHS, streamed=STREAMED)}


def took(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def counted(survival: Survival) -> dict[str, Any]:
    """The figures of all rounds."""
    return {
        "points": len(survival.kills), "faults": survival.kills.total(), "runs": survival.runs, "reads": survival.reads,
        "orphans": {point: count for point, count in survival.orphans.items() if count}, "found": survival.found,
    }  # fmt: skip
