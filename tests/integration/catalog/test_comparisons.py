"""A scheduler compares the reproductions that nobody has asked about, one process each of them, before their tables are dropped."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.reproductions import BODIES, EDGES, original, work
from support.run_actions import clear_
from support.tables import SCHEMA, Lake, rows
from support.waiting import eventually

from paceline.exceptions import ConflictError, NotFoundError
from scheduler.actions import runs as actions
from scheduler.actions.actor import Actor
from scheduler.catalog import gc, reproduction, scratch
from scheduler.catalog.contents import State
from scheduler.services.comparisons import compare_due
from scheduler.services.prune import Prune
from scheduler.store.actions import clear
from scheduler.store.db.database import transact
from scheduler.store.runs.reproductions import Reproduction
from scheduler.store.tables import comparisons
from scheduler.store.upkeep import retention

#: Seconds for a comparison to begin or end: its process has the lowest priority, so it comes last on a busy machine.
BUSY_S = 200
HOLDER = """
import sys, threading
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.tables import comparisons
from scheduler.store.upkeep import retention
engine = database.create(Settings.model_validate_json(sys.stdin.readline()), pool_size=1)
with comparisons.claimed(engine, int(sys.argv[1])) as is_free:
    print(is_free, flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def made(lake: Lake) -> Reproduction:
    """A reproduction that has ended an hour ago."""
    lake.person().create_table("sales.source", SCHEMA).append(rows(1, 2))
    original(lake, BODIES, EDGES)
    by = Actor(settings=lake.scenario.settings, engine=lake.scenario.engine, announce=lambda *_: None, name="ada", made_by="cli")
    found = actions.reproduce(by, "d", "one", keep=False, despite_effects=False)
    work(lake, BODIES)
    lake.scenario.sql("update dag_run set ended_at = ended_at - interval '1 hour'")
    return found


def tries(lake: Lake) -> tuple[Any, ...]:
    """The number of tries, whether there is a result, and why the last try failed."""
    (found,) = lake.scenario.rows("select tries, verdict->>'is_equal', failure from reproduction")
    return tuple(found)


def compare(lake: Lake, stop: threading.Event | None = None, **limits: float) -> None:
    compare_due(lake.scenario.engine, lake.scenario.settings, stop or threading.Event(), **limits)


def collect(lake: Lake, older_s: float = 600) -> bool:
    """Delete what nobody needs. Whether the tables of the reproduction are there."""
    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=older_s)
    return bool(lake.scenario.rows("select 1 from table_version where namespace like 'reproduce%%'"))


@contextmanager
def nobody_reads(lake: Lake, table: str) -> Iterator[None]:
    """Let each comparison wait."""
    with lake.scenario.engine.begin() as connection:
        connection.exec_driver_sql(f"lock table {table} in access exclusive mode")
        yield


def waits(lake: Lake) -> bool:
    return bool(
        lake.scenario.rows("select 1 from pg_stat_activity where application_name like '%%comparison' and wait_event_type = 'Lock'")
    )


def test_a_scheduler_stores_the_result_before_the_tables_go(lake: Lake, made: Reproduction) -> None:
    assert collect(lake), "nobody has compared them"
    prune = Prune(lake.scenario.engine, lake.scenario.settings)
    try:
        prune.run_once(datetime.now(UTC))
        eventually(lambda: tries(lake) == (1, "true", None), timeout=BUSY_S)
        assert not collect(lake)
    finally:
        prune.close()
    assert reproduction.judge(lake.scenario.settings, lake.scenario.engine, made.id)


def test_tables_that_no_scheduler_compares_go_after_a_week(lake: Lake, made: Reproduction) -> None:
    assert collect(lake, older_s=3600 / 6)
    assert not collect(lake, older_s=3600 / 8)


def test_schedulers_give_up_what_they_cannot_read_and_say_why(lake: Lake, made: Reproduction) -> None:
    for file in (lake.scenario.settings.home / "lake").rglob("*.parquet"):
        file.unlink()
    compare(lake)
    assert tries(lake)[:2] == (1, None) and "parquet" in tries(lake)[2]
    compare(lake)
    assert tries(lake)[0] == 1, "it is not tried again at once"
    lake.scenario.sql("update reproduction set tried_at = tried_at - interval '1 hour', tries = 2")
    assert collect(lake)
    compare(lake)
    assert tries(lake)[0] == comparisons.MOST_TRIES
    lake.scenario.sql("update reproduction set tried_at = tried_at - interval '1 hour'")
    assert not transact(lake.scenario.engine, comparisons.is_due, "lake")
    assert not collect(lake)


def test_a_scheduler_that_stops_ends_the_comparison_and_uses_up_no_try(lake: Lake, made: Reproduction) -> None:
    stop = threading.Event()
    with nobody_reads(lake, "table_read"):
        thread = threading.Thread(target=compare, args=(lake, stop))
        thread.start()
        eventually(lambda: waits(lake), timeout=BUSY_S)
        stop.set()
        thread.join(20)
        assert not thread.is_alive()
    assert tries(lake) == (0, None, None)
    compare(lake)
    assert tries(lake) == (1, "true", None)


def test_a_comparison_has_a_limit_of_its_time(lake: Lake, made: Reproduction) -> None:
    with nobody_reads(lake, "table_read"):
        compare(lake, limit_s=0.5)
    assert tries(lake) == (1, None, "It took longer than 0.5 s to read its tables.")


def test_what_both_runs_have_written_stays_until_it_is_compared(lake: Lake, made: Reproduction) -> None:
    person = lake.person()
    for table in ("sales.orders", "sales.totals"):
        person.load_table(table).overwrite(rows(9))
    lake.scenario.sql("update table_version set published_at = published_at - interval '40 days'")

    lake.scenario.sql("delete from table_try")

    def left() -> int:
        transact(lake.scenario.engine, retention.delete_rows, "table_versions", datetime.now(UTC))
        return len(lake.scenario.rows("select 1 from table_version where run_id = 'one'"))

    assert left() == 2
    compare(lake)
    assert tries(lake) == (1, "true", None)
    assert left() == 0


def test_one_process_compares_and_the_others_take_its_result(lake: Lake, made: Reproduction) -> None:
    lake.scenario.sql(
        """
        create table stored (id bigint);
        create function note_stored() returns trigger language plpgsql as
            'begin insert into stored values (new.dag_run_id); return new; end';
        create trigger note_stored after update of verdict on reproduction for each row execute function note_stored()
        """
    )
    with ThreadPoolExecutor(3) as pool:
        judging = [
            pool.submit(reproduction.judge, lake.scenario.settings, lake.scenario.engine, made.id, wait=True) for _ in range(3)
        ]
        found = [one.result(120) for one in judging]
    assert found[0] is not None and found[0]["is_equal"] and found[1] == found[0] == found[2]
    assert lake.scenario.rows("select count(*) from stored") == [(1,)]


def test_a_claim_keeps_others_out_without_a_transaction_and_ends_with_its_process(lake: Lake, made: Reproduction) -> None:
    settings, engine = lake.scenario.settings, lake.scenario.engine
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(made.id)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(settings.model_dump_json() + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "True\n"
        holders = "select a.state, a.backend_xmin from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory'"
        assert ("idle", None) in lake.scenario.rows(holders)
        assert reproduction.judge(settings, engine, made.id) is None
        compare(lake)
        assert tries(lake) == (0, None, None), "no try is used up"
        assert collect(lake, older_s=0), "the holder reads them"
    finally:
        process.kill()
        process.communicate()

    def is_free() -> bool:
        with comparisons.claimed(engine, made.id) as free:
            return free

    eventually(is_free, timeout=BUSY_S)
    assert reproduction.judge(settings, engine, made.id)


def test_a_cleared_reproduction_keeps_its_tables_and_one_without_tables_is_not_cleared(lake: Lake, made: Reproduction) -> None:
    settings, engine = lake.scenario.settings, lake.scenario.engine
    clear_(lake.scenario, dag_id="d", run_id=made.run_id)
    assert scratch.drop(settings, engine, made.scratch) == 0
    assert collect(lake, older_s=0)
    with pytest.raises(ConflictError, match="compared when it has ended again"):
        reproduction.judge(settings, engine, made.id)
    work(lake, BODIES)
    assert scratch.drop(settings, engine, made.scratch) > 0
    with pytest.raises(NotFoundError, match="deleted before anybody compared them"):
        reproduction.judge(settings, engine, made.id)
    with pytest.raises(ConflictError, match="reproduce its original again"):
        clear_(lake.scenario, dag_id="d", run_id=made.run_id)
    with pytest.raises(ConflictError, match="reproduce its original again"):
        transact(engine, clear.queue_run, made.id)


def test_a_table_is_read_in_groups_of_files(lake: Lake) -> None:
    table = lake.person().create_table("sales.t", SCHEMA)
    for number in range(6):
        table.append(rows(number))
    state = State.of(lake.tables.warehouse, table.metadata_location)
    found = state.rows(lake.tables.warehouse, group_bytes=1)
    assert found.read_next_batch().num_rows == 1
    last = state.tasks[-1].file.file_path.removeprefix("file://")
    Path(last).unlink()
    with pytest.raises(OSError, match=Path(last).name):
        found.read_all()
    assert state.rows(lake.tables.warehouse, state.tasks[:-1], group_bytes=1 << 20).read_all().num_rows == 5
