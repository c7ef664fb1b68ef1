"""Retention: old runs are deleted in batches, rows that may be needed stay, and rules follow docs/reference/what-counts.md."""

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
import sqlalchemy
from fsspec.implementations.memory import MemoryFileSystem
from support.data import attempt
from support.run_actions import clear_
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.authoring.triggers import Target
from paceline.states import TaskState
from scheduler.deciding import rules
from scheduler.services.prune import Prune
from scheduler.settings.log_paths import run_folder
from scheduler.store.actions import delete
from scheduler.store.dags import dags, schedules
from scheduler.store.db.database import transact
from scheduler.store.db.rows import EngineReader
from scheduler.store.runs import deadlines, run_facts
from scheduler.store.upkeep import retention
from scheduler.store.worker import external_runs

LONG_AGO = timedelta(days=100)


def before(days: float = 30) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def ended(
    scenario: Scenario, dag_id: str, run_id: str, *, day: int = 1, run_type: str = "manual", ago: timedelta = LONG_AGO
) -> int:
    """A run that succeeded long ago."""
    run = scenario.trigger(dag_id, run_id=run_id, logical_date=datetime(2026, 1, day, tzinfo=UTC))
    scenario.run_to_end()
    scenario.sql("update dag_run set ended_at = ended_at - %s, run_type = %s where id = %s", ago, run_type, run)
    return run


def runs(scenario: Scenario) -> set[str]:
    return {row[0] for row in scenario.rows("select run_id from dag_run")}


def delete_runs(scenario: Scenario, days: float = 30) -> list[retention.Batch]:
    batches = [transact(scenario.engine, retention.delete_runs, before(days))]
    while batches[-1].after is not None:
        batches.append(transact(scenario.engine, retention.delete_runs, before(days), batches[-1].after))
    return batches


def test_an_old_run_goes_with_all_of_its_rows(scenario: Scenario) -> None:
    scenario.add(chain("d", 2, task={"notify": ("on_success",)}))
    old = ended(scenario, "d", "old")
    ended(scenario, "d", "young", day=2, ago=timedelta())
    scenario.sql("update notice set ended_at = now()")
    scenario.sql("insert into xcom (task_instance_id, key, value) select id, 'k', '1' from task_instance")
    scenario.sql("insert into task_try (task_instance_id, try_number) select id, 1 from task_instance")

    (batch,) = delete_runs(scenario)

    assert batch.runs == (retention.DeletedRun("d", "old", old, 2),)
    assert runs(scenario) == {"young"}
    for table in ("xcom", "task_try", "notice"):
        assert scenario.rows(f"select count(*) from {table}") == [(2,)], table
    assert scenario.rows("select count(*) from event where dag_run_id = %s", old) == [(0,)]


@pytest.mark.parametrize(
    "keeps_it",
    [
        "update dag_run set state = 'running', ended_at = null where run_id = 'old'",
        "update dag_run set run_type = 'scheduled' where run_id = 'old'",
        "insert into notice (kind, dag_run_id) select 'dag_success', id from dag_run where run_id = 'old'",
        "update task_instance set state = 'shutdown', requested_state = 'failed'",
        "with b as (insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess)"
        " select dag_id, version_id, now(), now(), 1, 'none' from dag_run returning id)"
        " update dag_run set backfill_id = b.id from b",
    ],
)
def test_a_run_that_is_still_needed_stays(scenario: Scenario, keeps_it: str) -> None:
    scenario.add(chain("d", 1))
    ended(scenario, "d", "old")
    scenario.sql(keeps_it)

    assert [batch.deleted for batch in delete_runs(scenario)] == [0]
    assert transact(scenario.engine, retention.count, before())["runs"] == 0


def test_the_last_scheduled_run_stays(scenario: Scenario) -> None:
    scenario.add(chain("d", 1))
    for day, run_type in enumerate(("scheduled", "scheduled", "manual"), 1):
        ended(scenario, "d", f"{run_type}{day}", day=day, run_type=run_type)

    delete_runs(scenario)

    assert runs(scenario) == {"scheduled2"}


@pytest.mark.parametrize("later", ["asset_triggered", "backfill", "reprocessed"])
def test_the_run_from_which_the_schedule_continues_stays(scenario: Scenario, later: str) -> None:
    scenario.add(chain("d", 1))
    for day in (1, 2):
        ended(scenario, "d", f"scheduled__{day}", day=day, run_type="scheduled")
    if later == "reprocessed":
        scenario.sql("update dag_run set run_type = 'backfill'")
    run = ended(scenario, "d", "later", day=3, run_type="backfill" if later == "reprocessed" else later)
    if later == "asset_triggered":
        scenario.sql("update dag_run set logical_date = null where id = %s", run)

    delete_runs(scenario)

    assert "scheduled__2" in runs(scenario)
    newest = transact(scenario.engine, schedules.newest_scheduled, "d")
    assert newest is not None
    assert newest[0] == datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("next_day", [1, 2, 3])
def test_a_run_of_a_backfill_stays_until_the_schedule_has_passed_its_date(scenario: Scenario, next_day: int) -> None:
    scenario.add(chain("d", 1))
    for day in (1, 2):
        ended(scenario, "d", f"backfill{day}", day=day, run_type="backfill")
    ended(scenario, "d", "later", day=4, run_type="asset_triggered")
    scenario.sql("update dag_schedule set next_logical_date = %s", datetime(2026, 1, next_day, tzinfo=UTC))

    delete_runs(scenario)

    assert runs(scenario) == {"later"} | {f"backfill{day}" for day in (1, 2) if day >= next_day}


def test_runs_that_a_later_run_depends_on_stay(scenario: Scenario) -> None:
    scenario.add(chain("d", 1, task={"depends_on_past": True}))
    for day in (1, 2, 4):
        ended(scenario, "d", f"day{day}", day=day)
    scenario.trigger("d", run_id="unfinished", logical_date=datetime(2026, 1, 3, tzinfo=UTC))

    delete_runs(scenario)

    assert runs(scenario) == {"day2", "unfinished", "day4"}, "the run before an unfinished one, and the last"


def test_a_locked_run_is_skipped_without_waiting(scenario: Scenario) -> None:
    scenario.add(chain("d", 1))
    held, free = ended(scenario, "d", "held", day=1), ended(scenario, "d", "free", day=2)
    with scenario.engine.begin() as other:
        other.exec_driver_sql("select 1 from dag_run where id = %s for no key update", (held,))
        delete_runs(scenario)
        assert scenario.rows("select id from dag_run") == [(held,)], free
    delete_runs(scenario)
    assert runs(scenario) == set()


def test_many_runs_go_in_batches_of_bounded_size(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SCAN_RUNS", 4)
    monkeypatch.setattr(retention, "MOST_INSTANCES", 5)
    scenario.add(chain("d", 2))
    scenario.add(chain("large", 9))
    for day in range(1, 6):
        ended(scenario, "d", f"r{day}", day=day)
    ended(scenario, "large", "large")

    batches = delete_runs(scenario)

    assert runs(scenario) == set()
    sizes = [sum(run.instances for run in batch.runs) for batch in batches]
    assert max(sizes) == 9, "a run is never cut in two"
    assert all(size <= 5 or size == 9 for size in sizes), sizes
    assert sum(sizes) == 19


def test_a_large_run_goes_in_one_transaction_of_small_statements(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_INSTANCES", 2)
    scenario.add(chain("large", 5))
    old = ended(scenario, "large", "old")
    deleted: list[int] = []

    def note(*call: Any) -> None:
        if "delete from task_instance" in call[2]:
            deleted.append(call[1].rowcount)

    sqlalchemy.event.listen(scenario.engine, "after_cursor_execute", note)
    (batch,) = delete_runs(scenario)

    assert batch.runs == (retention.DeletedRun("large", "old", old, 5),)
    assert deleted == [2, 2, 1]
    for table in ("dag_run", "task_instance", "event"):
        assert scenario.rows(f"select count(*) from {table}") == [(0,)], table


def test_versions_without_runs_go_and_the_newest_stays(scenario: Scenario) -> None:
    for length in (1, 2, 3):
        scenario.add(chain("d", length))
    scenario.trigger("d")
    scenario.add(chain("d", 4))
    scenario.sql("update dag_version set created_at = created_at - interval '1 year'")

    assert transact(scenario.engine, retention.count, before())["dag_versions"] == 2
    assert transact(scenario.engine, retention.delete_rows, "dag_versions", before()).deleted == 2
    assert scenario.rows("select number from dag_version order by 1") == [(3,), (4,)]


def test_the_version_of_an_earlier_try_stays_with_its_run(scenario: Scenario) -> None:
    scenario.finish(chain("d", 1), run_id="r")
    scenario.add(chain("d", 2))
    clear_(scenario, latest=True)
    scenario.add(chain("d", 3))
    scenario.sql("update dag_version set created_at = created_at - interval '1 year'")

    assert transact(scenario.engine, retention.delete_rows, "dag_versions", before()).deleted == 0
    scenario.sql("delete from dag_run")
    scenario.sql("update dag_schedule set planned_version_id = (select version_id from dag)")
    assert transact(scenario.engine, retention.delete_rows, "dag_versions", before()).deleted == 2


def test_updates_of_assets_are_deleted_once_no_schedule_waits_for_them(scenario: Scenario) -> None:
    run = scenario.triggered(chain("d", 1))
    scenario.sql("insert into asset (uri, name) values ('a', 'a')")
    scenario.sql("insert into asset_event (uri, created_by, created_at) select 'a', n::text, now() - interval '1 year'"
                 " from generate_series(1, 5) n")  # fmt: skip
    scenario.sql("insert into asset_waiting select 'd', 'a', id from asset_event where created_by = '1'")
    scenario.sql("insert into dag_run_asset_event select %s, id from asset_event where created_by = '2'", run)

    assert transact(scenario.engine, retention.delete_rows, "asset_events", before()).deleted == 2
    assert scenario.rows("select created_by from asset_event order by 1") == [("1",), ("2",), ("5",)]


def test_stopped_processes_delivered_notices_and_stray_import_errors_are_deleted(scenario: Scenario) -> None:
    run = scenario.triggered(chain("d", 1))
    old = "now() - interval '1 year'"
    scenario.sql(f"insert into process (id, kind, name, host, pid, stopped_at) select n, 'worker', n, 'h', 1, {old}"
                 " from unnest(array['gone', 'runs']) n")  # fmt: skip
    scenario.sql("update task_instance set state = 'running', worker = 'runs', started_at = now(), dispatch_id = gen_random_uuid()")
    scenario.sql(f"insert into notice (kind, dag_run_id, created_at, ended_at) values ('dag_success', %s, {old}, {old})", run)
    scenario.sql(f"insert into notice (kind, dag_run_id, created_at) values ('dag_success', %s, {old})", run)
    scenario.sql("insert into dag_file (path, modified_at) values ('there.py', now())")
    scenario.sql(
        f"insert into import_error (file, message, seen_at) select f, 'm', {old} from unnest(array['there.py', 'gone.py']) f"
    )

    deleted = {kind: transact(scenario.engine, retention.delete_rows, kind, before()).deleted for kind in retention.KINDS}

    assert deleted == {"processes": 1, "notices": 1, "import_errors": 1, "asset_events": 0, "backfills": 0, "dag_versions": 0,
                       "dag_sources": 0, "account_keys": 0, "login_failures": 0, "bundle_versions": 0,
                       "bundle_files": 0, "table_versions": 0, "table_runs": 0,
                       "table_reads": 0, "table_pins": 0, "table_requests": 0}  # fmt: skip
    assert scenario.rows("select id from process where id in ('gone', 'runs')") == [("runs",)]
    assert scenario.rows("select file from import_error") == [("there.py",)]


def test_the_search_of_a_table_ends_at_its_first_young_row(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SCAN", 2)
    run = scenario.triggered(chain("d", 1))
    scenario.sql(
        "insert into notice (kind, dag_run_id, created_at, ended_at) select 'dag_success', %s, at, at"
        " from unnest(array[90, 80, 70, 1, 1, 1, 1]) d cross join lateral (select now() - make_interval(days => d) as at) x",
        run,
    )

    first = transact(scenario.engine, retention.delete_rows, "notices", before())
    second = transact(scenario.engine, retention.delete_rows, "notices", before(), first.after)

    assert (first.deleted, second.deleted, second.after) == (2, 1, None)


def test_a_scheduler_deletes_by_its_settings(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(retention={"run_days": 30, "logs": True, "interval": 0.001})
    scenario.add(chain("d", 1))
    folders = {name: run_folder(scenario.settings.logs_folder, "d", name) for name in ("old", "young")}
    for folder in folders.values():
        (folder / "t000").mkdir(parents=True)
    old = attempt(scenario.settings, "d", "old", ended(scenario, "d", "old"))
    young = attempt(scenario.settings, "d", "young", ended(scenario, "d", "young", day=2, ago=timedelta(days=10)))

    scenario.turn()

    assert runs(scenario) == {"young"}
    eventually(lambda: scenario.rows("select id from deleted_run") == [])
    assert (folders["old"].exists(), folders["young"].exists()) == (False, True)
    assert (old.exists(), young.exists()) == (False, True)


class SlowFiles(MemoryFileSystem):
    """Storage on which a deletion lasts until the test allows it to end."""

    protocol = "slow"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    begun, may_end = threading.Event(), threading.Event()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("slow://")))

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self.begun.set()
        assert self.may_end.wait(60)
        super().rm(path, recursive=recursive, maxdepth=maxdepth)


def test_slow_storage_does_not_hold_the_loop(make_scenario: Callable[..., Scenario]) -> None:
    fsspec.register_implementation("slow", SlowFiles, clobber=True)
    scenario = make_scenario(retention={"run_days": 30, "logs": True, "interval": 0.001}, logs={"url": "slow://logs"})
    scenario.add(chain("d", 1))
    for day, name in enumerate(("old1", "old2"), 1):
        ended(scenario, "d", name, day=day)
        SlowFiles().pipe(f"/logs/d/{name}/t000/try-1.log", b"text")
    try:
        scenario.turn()
        assert SlowFiles.begun.wait(30)
        run = scenario.trigger("d", run_id="new")
        scenario.run_to_end()
        assert scenario.run_state(run) == "success"
        assert len(SlowFiles().find("/logs")) == 2, "the storage has deleted nothing yet"
    finally:
        SlowFiles.may_end.set()
    eventually(lambda: scenario.rows("select id from deleted_run") == [])
    assert SlowFiles().find("/logs") == []


def test_the_files_that_a_killed_process_left_are_deleted(scenario: Scenario) -> None:
    scenario.add(chain("d", 1))
    data = attempt(scenario.settings, "d", "r", ended(scenario, "d", "r"))
    transact(scenario.engine, delete.delete_run, "d", "r")
    prune = Prune(scenario.engine, scenario.settings)

    prune.run_once(datetime.now(UTC))
    prune.close()
    assert data.exists(), "the process that deleted the run deletes them"
    scenario.sql("update deleted_run set due_at = due_at - interval '10 minutes'")
    prune = Prune(scenario.engine, scenario.settings)
    prune.run_once(datetime.now(UTC))

    eventually(lambda: scenario.rows("select id from deleted_run") == [])
    assert not data.exists()
    prune.close()


def test_the_logs_of_a_new_run_with_the_same_id_stay(scenario: Scenario) -> None:
    scenario.add(chain("d", 1))
    ended(scenario, "d", "r")
    folder = run_folder(scenario.settings.logs_folder, "d", "r")
    folder.mkdir(parents=True)
    transact(scenario.engine, retention.delete_runs, before(), logs=True)
    scenario.trigger("d", run_id="r")
    prune = Prune(scenario.engine, scenario.settings)

    prune.run_once(datetime.now(UTC))

    eventually(lambda: scenario.rows("select id from deleted_run") == [])
    assert folder.exists()
    prune.close()


def test_by_default_runs_stay_and_the_events_of_old_runs_are_deleted(scenario: Scenario) -> None:
    scenario.add(chain("d", 1))
    young = ended(scenario, "d", "young", ago=timedelta(days=10))
    old = ended(scenario, "d", "old", day=2)
    prune = Prune(scenario.engine, scenario.settings)

    first, second = prune.run_once(datetime.now(UTC)), prune.run_once(datetime.now(UTC))

    assert runs(scenario) == {"old", "young"}
    assert scenario.rows("select distinct dag_run_id from event") == [(young,)], old
    assert re.search(r"\b[1-9]\d* events", str(first.log))
    assert "events" not in str(second.log)
    assert second.again_in_s is None


def test_deleting_beside_schedulers_at_work_touches_nothing_of_theirs(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2, retention={"run_days": 1e-9, "interval": 0.001})
    scenario.add(dag("d", {"a": [], "b": ["a"], "c": ["a"], "e": ["b", "c"]}))
    ended_runs: list[Any] = []

    def worked(claim: Any) -> Any:
        ended_runs.append(claim.dag_run_id)
        return TaskState.SUCCESS

    for number in range(12):
        scenario.trigger("d", run_id=f"r{number}")
    eventually(lambda: (scenario.turn(), scenario.work(outcome=worked), runs(scenario) == set())[-1])

    assert len(ended_runs) == 12 * 4, "every task of every run ran once before its run was deleted"
    assert scenario.rows("select count(*) from event") == [(0,)]


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "what-counts.md"


def meaning(rule: str) -> str:
    """The cell of a rule in the last table of the page."""
    lines = PAGE.read_text(encoding="utf-8").partition("## Runs that retention has deleted")[2].splitlines()
    [line] = [line for line in lines if line.startswith(f"| {rule}")]
    return line.split("|")[2].strip()


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def old(scenario: Scenario, number: int, state: str = "success", run_type: str = "scheduled", took_s: int = 10) -> int:
    """A run of `d` on a day of a past month, which ended on that day."""
    run = scenario.trigger("d", run_id=f"r{number}", logical_date=day(number))
    scenario.run_to_end()
    scenario.sql(
        "update dag_run set state = %s, run_type = %s, started_at = %s, ended_at = %s where id = %s",
        state, run_type, day(number), day(number) + timedelta(seconds=took_s), run,
    )  # fmt: skip
    return run


def left(scenario: Scenario) -> list[str]:
    """The runs that retention leaves."""
    transact(scenario.engine, retention.delete_runs, datetime(2026, 3, 1, tzinfo=UTC))
    return [row[0] for row in scenario.rows("select run_id from dag_run order by logical_date")]


@pytest.mark.parametrize("run_type", ["scheduled", "manual"])
def test_a_dag_that_fails_seldom_is_paused_after_its_last_runs_failed(scenario: Scenario, run_type: str) -> None:
    scenario.add(chain("d", 1, max_consecutive_failed_dag_runs=3))
    for number, state in enumerate(["failed", "success", "failed", "failed", "failed"], 1):
        if number == 5:
            assert [run for run in left(scenario) if run != "r2"] == ["r3", "r4"], "r1 failed before a success"
        last = old(scenario, number, state, run_type)

    assert transact(scenario.engine, dags.pause_if_failing, [last]) == {"d": 3}
    assert meaning("`max_consecutive").startswith("kept")


def test_only_as_many_failed_runs_stay_as_count(scenario: Scenario) -> None:
    scenario.add(chain("d", 1, max_consecutive_failed_dag_runs=2))
    for number in range(1, 6):
        old(scenario, number, "failed", "manual")

    assert left(scenario) == ["r4", "r5"]


@pytest.mark.parametrize(("run_type", "found"), [("scheduled", day(1)), ("manual", None)])
def test_the_previous_success(scenario: Scenario, run_type: str, found: datetime | None) -> None:
    scenario.add(chain("d", 1))
    old(scenario, 1, run_type=run_type)
    for number in (2, 3):
        old(scenario, number, "failed")
    left(scenario)
    run = scenario.trigger("d", run_id="new", logical_date=day(9))

    with scenario.engine.begin() as connection:
        success = external_runs.previous_success(EngineReader(connection), run)

    assert (success and success[2]) == found
    assert meaning("`prev_start_date_success`").startswith("kept")


def test_the_average_of_the_runs_that_are_left(scenario: Scenario) -> None:
    average: dict[str, Any] = {"reference": "average_runtime", "interval_s": 0.0, "at": None, "max_runs": 9, "name": None}
    graph = dag("d", {"a": []}, deadlines=({**average, "min_runs": 1}, {**average, "min_runs": 2}))
    scenario.add(graph)
    for number, took_s in ((1, 1000), (2, 1000), (3, 20)):
        old(scenario, number, took_s=took_s)
    assert left(scenario) == ["r3"]
    run = scenario.trigger("d", run_id="new", logical_date=day(9))
    scenario.sql("delete from deadline")

    transact(scenario.engine, deadlines.plan, graph, run)

    due = scenario.rows("select d.number, d.due_at - r.queued_at from deadline d join dag_run r on r.id = d.dag_run_id")
    assert due == [(0, timedelta(seconds=20))]
    assert meaning("`AVERAGE_RUNTIME`").startswith("not kept: the average of the runs that are left")


@pytest.mark.parametrize("ignores_first", [True, False])
def test_a_task_whose_only_earlier_run_is_deleted(scenario: Scenario, ignores_first: bool) -> None:
    options = {"a": {"depends_on_past": True, "ignore_first_depends_on_past": ignores_first}, "b": {"depends_on_past": True}}
    graph = dag("d", {"a": [], "b": []}, options=options)
    scenario.add(graph)
    runs = [old(scenario, number) for number in (1, 2)]
    scenario.sql("update task_instance set state = 'failed' where dag_run_id = %s", runs[0])
    scenario.sql("update task_instance set state = 'removed' where dag_run_id = %s and task_id = 'a'", runs[1])
    assert left(scenario) == ["r2"]
    run = scenario.trigger("d", run_id="new", logical_date=day(9))

    with scenario.engine.begin() as connection:
        waits = rules.past_waits(graph, run_facts.before(connection, run, rules.past_relevant(graph), catchup=False))

    assert list(waits) == ([] if ignores_first else [0])
    assert "treated as in its first run" in meaning("`depends_on_past`")


def test_a_sensor_waits_for_a_deleted_run(scenario: Scenario) -> None:
    graph = chain("d", 1)
    scenario.add(graph)
    for number in (1, 2):
        old(scenario, number)
    assert left(scenario) == ["r2"]

    with scenario.engine.begin() as connection:
        answers = external_runs.states(
            EngineReader(connection), lambda _: graph, [Target(dag_id="d", logical_date=day(number)) for number in (1, 2)]
        )

    assert answers == [{}, {"success": 1}]
    assert meaning("ExternalTaskSensor").startswith("not kept: a deleted run is as one that does not exist yet")
