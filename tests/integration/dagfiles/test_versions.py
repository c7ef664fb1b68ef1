"""What is stored of DAG files: versions, activity, who owns a dag_id, and who reads which file when."""

import logging
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, event
from support.waiting import eventually

from scheduler.dagfiles.supervise import DagFileManager
from scheduler.messaging.wakeups import Wakeups
from scheduler.store.dags.files import Claimed, ImportProblem, ParsedDag, ParsedFile, claim, record, sync

from .conftest import Files

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SOURCE = """
from scheduler import DAG, task

with DAG("{dag_id}", schedule="@daily", tags={{"b", "a", "c"}}, is_paused_upon_creation={paused}):
    @task
    def {task_id}():
        return 1

    {task_id}()
"""


def source(dag_id: str = "d", task_id: str = "one", paused: bool | None = None) -> str:
    return SOURCE.format(dag_id=dag_id, task_id=task_id, paused=paused)


def parsed(path: str, *dag_ids: str, modified_at: datetime = NOW, content: str = "1") -> ParsedFile:
    dags = tuple(ParsedDag(dag_id=dag_id, content_hash=f"{dag_id}{content}", data="{}") for dag_id in dag_ids)
    return ParsedFile(path=path, modified_at=modified_at, duration_s=0.1, dags=dags)


def test_an_unchanged_file_has_one_version_and_an_edited_one_two(files: Files) -> None:
    files.write("d.py", source())
    manager = files.manager(settled_file_process_interval=30)
    files.read_all(manager, now=NOW)
    turns = files.read_all(manager, now=NOW + MINUTE)
    assert [turn.stored for turn in turns if turn.stored] == [("d.py",)]
    assert files.dags() == {"d": ("d.py", True, 1)}

    files.write("d.py", source(task_id="two"))
    turns = files.turn_until(manager, lambda: files.dags() == {"d": ("d.py", True, 2)}, now=NOW + MINUTE)
    assert turns[-1].new_versions == ("d",)

    files.write("d.py", source())
    files.turn_until(manager, lambda: files.dags() == {"d": ("d.py", True, 1)}, now=NOW + MINUTE)
    assert files.rows("select number from dag_version order by 1") == [(1,), (2,)]


def test_a_file_that_looks_at_more_than_code_is_read_again_sooner(files: Files) -> None:
    files.write("tables.txt", "one")
    files.write("code.py", source("code"))
    files.write("reads.py", source("reads") + "from pathlib import Path\nPath(__file__).with_name('tables.txt').read_text()\n")
    files.write("lists.py", source("lists") + "import os\nos.listdir(os.path.dirname(__file__))\n")
    files.write("asks.py", source("asks") + "import subprocess\nsubprocess.run(['true'])\n")
    files.write("wrong.py", "import scheduler\ndag = 1 / 0\n")
    manager = files.manager()
    files.read_all(manager, now=NOW)

    turns = files.read_all(manager, now=NOW + MINUTE)
    assert {path for turn in turns for path in turn.stored} == {"reads.py", "lists.py", "asks.py", "wrong.py"}

    turns = files.read_all(manager, now=NOW + timedelta(hours=2))
    assert "code.py" in {path for turn in turns for path in turn.stored}


def test_a_file_is_read_again_when_a_module_that_it_imports_changes(files: Files) -> None:
    files.write("team/names.py", "NAME = 'one'\n")
    files.write("imports.py", "from team.names import NAME\n" + source("imports"))
    files.write("other.py", source("other"))
    manager = files.manager()
    files.read_all(manager, now=NOW)
    assert files.rows("select path, modules from dag_file order by 1") == [("imports.py", ["team/names.py"]), ("other.py", [])]

    files.write("team/names.py", "NAME = 'two'\n")
    turns = files.turn_until(
        manager, lambda: files.rows("select 1 from dag_file where parsed_at > %(now)s", now=NOW), now=NOW + MINUTE
    )
    assert [turn.stored for turn in turns if turn.stored] == [("imports.py",)]

    # Nobody watched when it changed again.
    manager.stop()
    files.write("team/names.py", "NAME = 'three'\n")
    later = NOW + 2 * MINUTE
    turns = files.turn_until(
        files.manager("b"), lambda: files.rows("select 1 from dag_file where parsed_at >= %(now)s", now=later), now=later
    )
    assert [turn.stored for turn in turns if turn.stored] == [("imports.py",)]


def test_what_is_written_while_it_is_read_is_read_again_even_if_its_time_stays_the_same(files: Files) -> None:
    files.write("d.py", source())
    manager = files.manager()
    files.turn_until(manager, lambda: manager._claimed, now=NOW)
    manager._stale.add("d.py")  # as a listing says it

    turns = files.turn_until(manager, lambda: not manager._claimed and files.dags(), now=NOW)

    assert [turn.stored for turn in turns if turn.stored] == [("d.py",)] and not manager._stale


def test_what_is_told_again_is_due_again(files: Files) -> None:
    sync(files.engine, {"a.py": NOW, "b.py": NOW}, complete=True, now=NOW)
    with files.engine.begin() as connection:
        connection.exec_driver_sql("update dag_file set next_parse_at = '2040-01-01', modules = array['m.py'] where path = 'b.py'")
        connection.exec_driver_sql("update dag_file set next_parse_at = '2040-01-01' where path = 'a.py'")
    due = "select path from dag_file where next_parse_at < '2040-01-01' order by 1"

    sync(files.engine, {"a.py": NOW}, complete=False, now=NOW)
    assert files.rows(due) == []
    sync(files.engine, {"a.py": NOW}, complete=False, now=NOW, again=["a.py"])
    assert files.rows(due) == [("a.py",)]
    sync(files.engine, {}, complete=False, now=NOW, modules={"m.py": NOW}, again=["m.py"])
    assert files.rows(due) == [("a.py",), ("b.py",)]


def test_a_version_is_the_same_in_any_process(files: Files) -> None:
    lines = "\n".join(f"    t{i} = EmptyOperator(task_id='t{i}')" for i in range(20))
    files.write(
        "d.py",
        "from scheduler import DAG, task\nfrom scheduler.operators import EmptyOperator\n"
        f"with DAG('d', schedule='@daily', tags=set('abcdefgh')):\n{lines}\n    {{t1, t2, t3}} and [t1, t2, t3, t4] >> t5\n",
    )
    script = (
        "import sys, json\nfrom pathlib import Path\nfrom scheduler.dagfiles.parse import Work, parse\n"
        "from scheduler.settings import Core, Scheduler\n"
        "print(parse('d.py', Work(Path(sys.argv[1]), Core(), Scheduler()))['dags'][0]['content_hash'])"
    )

    found = {
        subprocess.run(
            [sys.executable, "-P", "-c", script, str(files.settings.dags_folder)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }

    assert len(found) == 1


def test_a_removed_file_makes_its_dags_inactive_and_a_file_that_comes_back_active(files: Files) -> None:
    files.write("d.py", source())
    files.write("other.py", source("other"))
    manager = files.manager()
    files.read_all(manager)
    path = files.settings.dags_folder / "d.py"

    path.rename(path.with_suffix(".off"))
    turns = files.turn_until(manager, lambda: not files.dags()["d"][1])
    assert turns[-1].removed == ("d",)
    assert files.dags() == {"d": ("d.py", False, 1), "other": ("other.py", True, 1)}
    assert files.rows("select count(*) from dag_version where dag_id = 'd'") == [(1,)]

    path.with_suffix(".off").rename(path)
    files.turn_until(manager, lambda: files.dags()["d"] == ("d.py", True, 1))


def test_a_dag_that_leaves_its_file_becomes_inactive_and_one_that_moves_does_not(files: Files) -> None:
    files.write("d.py", source("stays") + source("leaves"))
    manager = files.manager()
    files.read_all(manager)

    files.write("d.py", source("stays"))
    files.turn_until(manager, lambda: not files.dags()["leaves"][1])
    (files.settings.dags_folder / "d.py").rename(files.settings.dags_folder / "moved.py")
    files.turn_until(manager, lambda: files.dags()["stays"][:2] == ("moved.py", True))

    assert files.errors() == {}


def test_an_error_keeps_the_former_versions_of_the_whole_file_active(files: Files) -> None:
    files.write("d.py", source("a") + source("b"))
    manager = files.manager()
    files.read_all(manager)
    before = files.dags()

    files.write("d.py", source("a", task_id="new") + "raise ValueError('no')\n")
    files.turn_until(manager, files.errors)
    assert files.dags() == before

    files.write("d.py", source("a") + source("b"))
    files.turn_until(manager, lambda: not files.errors())
    assert files.dags() == before


def test_one_dag_id_in_two_files_is_an_error_naming_both_until_one_of_them_goes(files: Files) -> None:
    files.write("first.py", source("same"))
    manager = files.manager()
    files.read_all(manager)

    files.write("second.py", source("same", task_id="other") + source("else"))
    files.turn_until(manager, files.errors)
    assert files.errors().keys() == {"second.py"}
    assert files.errors()["second.py"][1].startswith("DAG 'same' is in first.py and in second.py; first.py keeps it")
    assert files.dags() == {"same": ("first.py", True, 1)}

    (files.settings.dags_folder / "first.py").unlink()
    files.turn_until(manager, lambda: not files.dags()["same"][1])
    now = datetime.now(UTC) + MINUTE
    files.turn_until(manager, lambda: files.dags().get("same", ("", 0, 0))[0] == "second.py", now=now)
    assert files.errors() == {}
    assert files.dags() == {"same": ("second.py", True, 2), "else": ("second.py", True, 1)}


def test_two_files_that_bring_the_same_new_ids_at_once_do_not_both_get_them(files: Files) -> None:
    ids = [f"d{number}" for number in range(30)]
    names = [f"f{number}.py" for number in range(4)]
    for round_ in range(5):
        sync(files.engine, dict.fromkeys(names, NOW + round_ * MINUTE), complete=True, now=NOW)
        claim(files.engine, claimed_by="a", until=NOW + MINUTE, now=NOW, limit=9, sort_mode="alphabetical", host="h")
        mixed = [ids[number:] + ids[:number] for number in range(4)]

        files_read = [
            parsed(name, *(f"{round_}{dag_id}" for dag_id in mine), modified_at=NOW + round_ * MINUTE, content=name)
            for name, mine in zip(names, mixed, strict=True)
        ]

        with ThreadPoolExecutor(4) as threads:
            results = list(
                threads.map(lambda file: record(files.engine, file, claimed_by="a", now=NOW, min_interval=MINUTE), files_read)
            )

        assert sum(result.problem is None for result in results) == 1
        assert all("(and 29 more ids)" in result.problem.message for result in results if result.problem)
        owners = files.rows("select distinct file from dag where dag_id like %(like)s", like=f"{round_}d%")
        assert owners == [(names[[result.problem is None for result in results].index(True)],)]


def test_500_dags_in_one_file_are_stored_in_a_few_statements(files: Files) -> None:
    files.write(
        "many.py",
        "from scheduler import DAG\nfrom scheduler.operators import EmptyOperator\n"
        "for i in range(500):\n    with DAG(f'd{i}', schedule='@daily'):\n"
        "        EmptyOperator(task_id='a') >> EmptyOperator(task_id='b')\n",
    )
    files.write("good.py", source("good"))
    statements: list[str] = []
    engine = create_engine("postgresql+psycopg2://", creator=files.engine.pool._creator)

    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    manager = DagFileManager(engine, files.settings, "a")
    files.managers.append(manager)

    turns = files.read_all(manager)

    assert len(files.dags()) == 501 and all(active for _, active, _ in files.dags().values())
    assert files.rows("select count(*) from dag_schedule") == [(501,)]
    assert len(statements) < 30 + 2 * len(turns)
    engine.dispose()


@pytest.mark.parametrize(
    ("own", "setting", "expected"), [(None, False, False), (None, True, True), (True, False, True), (False, True, False)]
)
def test_a_new_dag_starts_paused_as_it_or_the_setting_says_and_keeps_what_a_person_set(
    own: bool | None, setting: bool, expected: bool, files: Files
) -> None:
    files.write("d.py", source(paused=own))
    core = files.settings.core.model_copy(update={"dags_are_paused_at_creation": setting})
    manager = DagFileManager(files.engine, files.settings.model_copy(update={"core": core}), "a")
    files.managers.append(manager)
    files.read_all(manager)
    assert files.rows("select is_paused from dag_schedule") == [(expected,)]

    with files.engine.begin() as connection:
        connection.exec_driver_sql("update dag_schedule set is_paused = not is_paused")
    files.write("d.py", source(task_id="two", paused=own))
    files.turn_until(manager, lambda: files.dags()["d"][2] == 2)
    assert files.rows("select is_paused from dag_schedule") == [(not expected,)]


def test_two_managers_read_each_file_once_per_interval(files: Files) -> None:
    for number in range(12):
        files.write(f"d{number}.py", source(f"d{number}"))
    managers = [files.manager(name, settled_file_process_interval=30) for name in "ab"]
    reads: Counter[str] = Counter()

    for interval in (1, 2):
        now = NOW + interval * MINUTE

        def everything_read(now: datetime = now, interval: int = interval) -> bool:
            for manager in managers:
                reads.update(manager.run_once(now).stored)
            return reads.total() >= 12 * interval and not files.rows("select 1 from dag_file where claimed_by is not null")

        eventually(everything_read, timeout=60)
        assert set(reads.values()) == {interval} and len(reads) == 12
    assert len(files.dags()) == 12


def test_managers_in_threads_notice_a_change_at_once_and_ring_the_doorbell(files: Files) -> None:
    wakeups = Wakeups(files.settings)
    managers = [DagFileManager(files.engine, files.settings, name, wakeups) for name in "ab"]
    files.managers += managers
    for manager in managers:
        manager.start()
    eventually(lambda: files.rows("select 1") and all(manager._watch.fileno() for manager in managers))

    files.write("d.py", source())
    eventually(lambda: files.dags().get("d") == ("d.py", True, 1), timeout=5)
    assert eventually(lambda: wakeups.wait(0.1)) == {"plan"}

    files.write("d.py", source(task_id="two"))
    eventually(lambda: files.dags()["d"][2] == 2, timeout=5)
    wakeups.close()


def test_a_manager_outlives_its_database_connections(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    manager = files.manager(scheduler_idle_sleep_time=0.05)
    manager.start()
    files.write("d.py", source())
    eventually(lambda: files.dags())

    with files.engine.connect() as connection:
        connection.exec_driver_sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()"
        )
    files.write("e.py", source("e"))

    eventually(lambda: "e" in files.dags())


def test_a_claim_is_exclusive_lapses_and_its_late_result_is_refused(files: Files) -> None:
    sync(files.engine, {"d.py": NOW}, complete=True, now=NOW)

    def take(who: str, now: datetime) -> list[Claimed]:
        return claim(files.engine, claimed_by=who, until=now + MINUTE, now=now, limit=5, sort_mode="modified_time", host="h")

    assert take("a", NOW) == [Claimed("d.py", NOW)]
    assert take("b", NOW) == []
    assert take("b", NOW + MINUTE) == [Claimed("d.py", NOW)]

    late = record(files.engine, parsed("d.py", "d"), claimed_by="a", now=NOW + MINUTE, min_interval=MINUTE)
    assert not late.accepted and files.dags() == {}
    mine = record(files.engine, parsed("d.py", "d"), claimed_by="b", now=NOW + MINUTE, min_interval=MINUTE)
    assert mine.accepted and mine.new_versions == ("d",)
    assert take("b", NOW + MINUTE) == []


def test_a_file_that_changed_while_it_was_read_is_due_at_once(files: Files) -> None:
    sync(files.engine, {"d.py": NOW}, complete=True, now=NOW)
    claim(files.engine, claimed_by="a", until=NOW + MINUTE, now=NOW, limit=5, sort_mode="alphabetical", host="h")
    sync(files.engine, {"d.py": NOW + MINUTE}, complete=True, now=NOW)

    record(files.engine, parsed("d.py", "d"), claimed_by="a", now=NOW, min_interval=MINUTE)

    assert files.rows("select next_parse_at from dag_file") == [(NOW,)]


def test_a_file_removed_while_it_was_read_stays_removed(files: Files) -> None:
    sync(files.engine, {"d.py": NOW}, complete=True, now=NOW)
    claim(files.engine, claimed_by="a", until=NOW + MINUTE, now=NOW, limit=5, sort_mode="alphabetical", host="h")
    sync(files.engine, {}, complete=True, now=NOW)

    assert not record(files.engine, parsed("d.py", "d"), claimed_by="a", now=NOW, min_interval=MINUTE).accepted
    assert files.dags() == {}


def test_an_incomplete_listing_removes_nothing(files: Files) -> None:
    sync(files.engine, {"a.py": NOW, "b.py": NOW}, complete=True, now=NOW)

    sync(files.engine, {"a.py": NOW}, complete=False, now=NOW)

    assert files.rows("select path from dag_file order by path") == [("a.py",), ("b.py",)]


@pytest.mark.parametrize(
    ("sort_mode", "expected"),
    [("modified_time", ["b.py", "c.py", "a.py"]), ("alphabetical", ["a.py", "b.py", "c.py"]), ("random_seeded_by_host", None)],
)
def test_new_files_come_in_the_order_of_the_sort_mode(sort_mode: str, expected: list[str] | None, files: Files) -> None:
    sync(files.engine, {"a.py": NOW, "b.py": NOW + 2 * MINUTE, "c.py": NOW + MINUTE}, complete=True, now=NOW)

    def order(host: str) -> list[str]:
        with files.engine.begin() as connection:
            connection.exec_driver_sql("update dag_file set claimed_until = null")
        return [
            claim(files.engine, claimed_by="a", until=NOW + MINUTE, now=NOW, limit=1, sort_mode=sort_mode, host=host)[0].path
            for _ in range(3)
        ]

    if expected:
        assert order("host") == expected
    else:
        orders = {host: order(host) for host in "abcdef"}
        assert all(sorted(found) == ["a.py", "b.py", "c.py"] for found in orders.values())
        assert order("a") == orders["a"] and len({tuple(found) for found in orders.values()}) > 1


def test_a_file_that_is_always_the_newest_does_not_starve_the_others(files: Files) -> None:
    sync(files.engine, {"new.py": NOW - MINUTE, "old.py": NOW - 2 * MINUTE}, complete=True, now=NOW)
    read = []
    for turn in range(6):
        now = NOW + 2 * turn * MINUTE
        (found,) = claim(files.engine, claimed_by="a", until=now + MINUTE, now=now, limit=1, sort_mode="modified_time", host="h")
        record(files.engine, parsed(found.path, modified_at=found.modified_at), claimed_by="a", now=now, min_interval=MINUTE)
        read.append(found.path)

    assert read == ["new.py", "old.py"] * 3


def test_an_import_error_keeps_the_time_it_was_first_seen_while_it_stays_the_same(files: Files) -> None:
    sync(files.engine, {"d.py": NOW}, complete=True, now=NOW)
    for minute, message in enumerate(("first", "first", "second")):
        now = NOW + minute * MINUTE
        claim(files.engine, claimed_by="a", until=now + MINUTE, now=now, limit=1, sort_mode="alphabetical", host="h")
        failed = ParsedFile(path="d.py", modified_at=NOW, duration_s=1, problem=ImportProblem(message, 3, "trace"))
        assert record(files.engine, failed, claimed_by="a", now=now, min_interval=MINUTE).problem == failed.problem
        seen = NOW if message == "first" else now
        assert files.rows("select file, line, message, seen_at from import_error") == [("d.py", 3, message, seen)]


def test_a_dag_id_too_long_for_the_database_is_an_import_error(files: Files) -> None:
    sync(files.engine, {"d.py": NOW}, complete=True, now=NOW)
    claim(files.engine, claimed_by="a", until=NOW + MINUTE, now=NOW, limit=1, sort_mode="alphabetical", host="h")
    long = "".join(chr(0x4E00 + number % 20000) for number in range(0, 9000 * 37, 37))

    result = record(files.engine, parsed("d.py", long), claimed_by="a", now=NOW, min_interval=MINUTE)

    assert result.problem is not None and result.problem.message.startswith("PostgreSQL cannot store a DAG of this file")
    assert files.errors().keys() == {"d.py"}


def test_a_schedule_without_a_zone_is_in_the_default_timezone(files: Files) -> None:
    files.settings = files.settings.model_copy(
        update={"core": files.settings.core.model_copy(update={"default_timezone": "Europe/Berlin"})}
    )
    files.write("d.py", source())

    files.read_all(files.manager(), now=NOW)

    assert files.rows("select data->'schedule'->>'timezone' from dag_version") == [("Europe/Berlin",)]
