"""Appends and overwrites of several writers at once are equal to the same ones in the order of their publications.

`make test-tables` runs 10,000 of them (TABLES_WRITES). They belong to several runs, so that old snapshots can expire between
them: each commit rewrites their list.
"""

import contextlib
import functools
import json
import os
import queue
import random
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pyiceberg.avro import file as avro_file
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from support.scenario import Scenario, dag
from support.tables import SCHEMA, Lake, ids, rows

from paceline.states import TaskState
from scheduler.catalog import expire, gc
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim, Ending, Refused, Reported
from scheduler.store.worker.hot_path import HotPath
from scheduler.store.worker.table_tries import TablesChangedError
from workers.tables import access
from workers.task.follow import DatabaseStore, Follower

WRITES = int(os.environ.get("TABLES_WRITES", "40"))
WRITERS, TABLES = 8, ("t0", "t1", "t2", "t3")
#: So many writes has a run, and so many messages are in the broker at most.
OF_RUN, QUEUED = 100, 64


@dataclass
class Write:
    """What a task instance does: it appends its number to these tables, or overwrites them with it."""

    number: int
    tables: list[str]
    overwrites: bool


class Writer(threading.Thread):
    """A pool process of its own, with its own connection."""

    def __init__(
        self, lake: Lake, messages: "queue.Queue[tuple[int, str] | None]", writes: dict[str, Write], ended: "queue.Queue[str]"
    ) -> None:
        super().__init__(daemon=True)
        scenario = lake.scenario
        self._lake, self._messages, self._writes, self.ended = lake, messages, writes, ended
        self._hot = HotPath(scenario.settings, scenario.worker_id)
        self._follower = Follower(self._hot, Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True)
        # PostgreSQL closes a connection that waits too long for a busy machine; a pool process repeats then.
        self._store = DatabaseStore(scenario.settings, self._hot, self._follower)
        self.published: dict[str, Write] = {}
        self.conflicts = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while (message := self._messages.get()) is not None:
                if (claim := self._store.claim(*message, self._hot.worker_id)) is not None:
                    self._one(claim)
                    self.ended.put(claim.task_id)
        except BaseException as error:
            self.error = error
        finally:
            self._hot.close()

    def _one(self, claim: Claim) -> None:
        write = self._writes[claim.task_id]
        token = self._store.patient(lambda: table_tries.give_token(self._hot.dicts, claim))
        catalog = load_catalog("lake", **self._lake.access(token).properties)
        for name in write.tables:
            table = catalog.load_table(f"sales.{name}")
            table.overwrite(rows(write.number)) if write.overwrites else table.append(rows(write.number))
        try:
            answer = access.repeated(
                lambda: self._report(claim, Ending(TaskState.SUCCESS, tables="lake")),
                lambda error: self._store.patient(lambda: access.move(self._lake.scenario.settings, self._hot, claim, error)),
            )
        except TablesChangedError:
            self.conflicts += 1
            self._report(claim, Ending(TaskState.FAILED, reason="conflict"))
        else:
            assert not isinstance(answer, Refused)
            self.published[claim.task_id] = write

    def _report(self, claim: Claim, ending: Ending) -> Reported | Refused:
        return self._store.patient(lambda: self._follower.report(claim, ending))


class Order:
    """The task instances in the order of their publications, read before the versions of tables are pruned."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._last = 0
        self.tasks: list[str] = []
        self.removed = 0

    def read(self) -> None:
        select = "select distinct publication, task_id from table_version where task_id is not null and publication > %s order by 1"
        for publication, task_id in self._lake.scenario.rows(select, self._last):
            self.tasks.append(task_id)
            self._last = publication

    def expire(self) -> None:
        """Remove what no later run needs."""
        self.read()
        settings, engine = self._lake.scenario.settings, self._lake.scenario.engine
        gc.collect(settings, engine, older_s=0)  # the tries, which hold what they have read
        for name in TABLES:
            self.removed += expire.expire(settings, engine, "sales", name, before=datetime.now(UTC), by="ada").snapshots


def run(scenario: Scenario, writers: list[Writer], messages: "queue.Queue[tuple[int, str] | None]") -> None:
    """Queue what may run, until the run has ended."""
    ended = writers[0].ended
    # A message that waits here is not in the broker, so it is sent again; a writer that repeats a claim must have it alone.
    seen: set[tuple[int, str]] = set()
    while scenario.rows("select 1 from dag_run where state in ('queued', 'running')"):
        scenario.turn()
        for message in set(scenario.messages()) - seen:
            seen.add(message)
            messages.put(message)
        with contextlib.suppress(queue.Empty):
            for _ in range(QUEUED // 4):
                ended.get(timeout=0.5)
        for writer in writers:
            assert writer.error is None, writer.error


@pytest.fixture
def parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg parses the Avro schema of each manifest again, which is a third of the time of this test; here each one once."""
    parse = functools.cache(lambda text: AvroSchemaConversion().avro_to_iceberg(json.loads(text)))
    monkeypatch.setattr(avro_file.AvroFileHeader, "get_schema", lambda header: parse(header.meta["avro.schema"]))
    readers: dict[tuple[Any, ...], Any] = {}

    def resolved(schema: Schema, wanted: Schema, types: dict[int, Any], enums: dict[int, Any]) -> Any:
        # Both schemas live as long as the test: the first one in the cache above, the second one in pyiceberg's constants.
        key = (id(schema), id(wanted), *types.items(), *enums.items())
        return readers.get(key) or readers.setdefault(key, resolve_reader(schema, wanted, types, enums))

    monkeypatch.setattr(avro_file, "resolve_reader", resolved)


@pytest.mark.timeout(7200 if WRITES > 100 else 120)
@pytest.mark.usefixtures("parsed_once")
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
def test_concurrent_writes_equal_some_serial_order_and_it_is_that_of_the_publications(lake: Lake) -> None:
    scenario: Scenario = lake.scenario
    assert fault_points.point is bool
    for name in TABLES:
        lake.person().create_table(f"sales.{name}", SCHEMA, properties={"paceline.rebase-appends": "true"}).append(rows(0))
    choose = random.Random(20261128)
    writes = {
        f"w{number:05d}": Write(number, choose.sample(TABLES, choose.randint(1, 3)), choose.random() < 0.25)
        for number in range(1, WRITES + 1)
    }
    scenario.sql("update pool set slots = 100000")
    messages: queue.Queue[tuple[int, str] | None] = queue.Queue()
    ended: queue.Queue[str] = queue.Queue()
    order = Order(lake)
    writers = [Writer(lake, messages, writes, ended) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    for first in range(0, WRITES, OF_RUN):
        tasks = list(writes)[first : first + OF_RUN]
        scenario.triggered(dag(f"ops{first}", {task_id: [] for task_id in tasks}, max_active_tasks=QUEUED))
        run(scenario, writers, messages)
        order.expire()
        print(
            f"{first + len(tasks)} writes, of which {len(order.tasks)} published; {order.removed} snapshots are gone",
            file=sys.stderr,
        )
    for _ in writers:
        messages.put(None)
    for writer in writers:
        writer.join(60)
        assert writer.error is None, writer.error
    published = {task_id: write for writer in writers for task_id, write in writer.published.items()}
    conflicts = sum(writer.conflicts for writer in writers)
    assert len(published) + conflicts == WRITES
    assert len(published) > WRITES / 4
    expected: dict[str, list[int]] = {name: [0] for name in TABLES}
    for task_id in order.tasks:
        write = published.pop(task_id)
        for name in write.tables:
            expected[name] = [write.number] if write.overwrites else [*expected[name], write.number]
    assert published == {}
    assert {name: ids(lake.person().load_table(f"sales.{name}")) for name in TABLES} == {
        name: sorted(numbers) for name, numbers in expected.items()
    }
