"""The rows of DAG files in the database: due files, claims, and results."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from scheduler.store.dags.files import Claimed, ParsedFile, claim, record, sync
from scheduler.store.dags.import_errors import Problem
from scheduler.store.db.database import transact

from .conftest import MINUTE, NOW, Files, parsed


@pytest.fixture
def files(files: Files) -> Files:
    files.clock.freeze(NOW)
    return files


def test_a_file_that_is_reported_again_is_due_again(files: Files) -> None:
    transact(files.engine, sync, {"a.py": NOW, "b.py": NOW}, complete=True)
    with files.engine.begin() as connection:
        connection.exec_driver_sql("update dag_file set next_parse_at = '2040-01-01', modules = array['m.py'] where path = 'b.py'")
        connection.exec_driver_sql("update dag_file set next_parse_at = '2040-01-01' where path = 'a.py'")
    due = "select path from dag_file where next_parse_at < '2040-01-01' order by 1"

    transact(files.engine, sync, {"a.py": NOW}, complete=False)
    assert files.rows(due) == []
    transact(files.engine, sync, {"a.py": NOW}, complete=False, again=["a.py"])
    assert files.rows(due) == [("a.py",)]
    transact(files.engine, sync, {}, complete=False, modules={"m.py": NOW}, again=["m.py"])
    assert files.rows(due) == [("a.py",), ("b.py",)]


def test_two_files_that_bring_the_same_new_ids_at_once_do_not_both_get_them(files: Files) -> None:
    ids = [f"d{number}" for number in range(30)]
    names = [f"f{number}.py" for number in range(4)]
    for round_ in range(5):
        transact(files.engine, sync, dict.fromkeys(names, NOW + round_ * MINUTE), complete=True)
        transact(files.engine, claim, claimed_by="a", lease_s=60, limit=9, sort_mode="alphabetical", host="h")
        mixed = [ids[number:] + ids[:number] for number in range(4)]

        files_read = [
            parsed(name, *(f"{round_}{dag_id}" for dag_id in mine), modified_at=NOW + round_ * MINUTE, content=name)
            for name, mine in zip(names, mixed, strict=True)
        ]

        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(lambda file: record(files.engine, file, claimed_by="a", min_interval=MINUTE), files_read))

        assert sum(result.problem is None for result in results) == 1
        assert all("(and 29 more IDs)" in result.problem.message for result in results if result.problem)
        owners = files.rows("select distinct file from dag where dag_id like %(like)s", like=f"{round_}d%")
        assert owners == [(names[[result.problem is None for result in results].index(True)],)]


def test_a_claim_is_exclusive_lapses_and_its_late_result_is_refused(files: Files) -> None:
    transact(files.engine, sync, {"d.py": NOW}, complete=True)

    def take(who: str, now: datetime) -> list[Claimed]:
        files.clock.freeze(now)
        return transact(files.engine, claim, claimed_by=who, lease_s=60, limit=5, sort_mode="modified_time", host="h")

    assert take("a", NOW) == [Claimed("d.py", NOW)]
    assert take("b", NOW) == []
    assert take("b", NOW + MINUTE) == [Claimed("d.py", NOW)]

    late = record(files.engine, parsed("d.py", "d"), claimed_by="a", min_interval=MINUTE)
    assert not late.accepted and files.dags() == {}
    mine = record(files.engine, parsed("d.py", "d"), claimed_by="b", min_interval=MINUTE)
    assert mine.accepted and mine.new_versions == ("d",)
    assert take("b", NOW + MINUTE) == []


def test_a_file_that_changed_while_it_was_read_is_due_at_once(files: Files) -> None:
    transact(files.engine, sync, {"d.py": NOW}, complete=True)
    transact(files.engine, claim, claimed_by="a", lease_s=60, limit=5, sort_mode="alphabetical", host="h")
    transact(files.engine, sync, {"d.py": NOW + MINUTE}, complete=True)

    record(files.engine, parsed("d.py", "d"), claimed_by="a", min_interval=MINUTE)

    assert files.rows("select next_parse_at from dag_file") == [(NOW,)]


def test_a_file_removed_while_it_was_read_stays_removed(files: Files) -> None:
    transact(files.engine, sync, {"d.py": NOW}, complete=True)
    transact(files.engine, claim, claimed_by="a", lease_s=60, limit=5, sort_mode="alphabetical", host="h")
    transact(files.engine, sync, {}, complete=True)

    assert not record(files.engine, parsed("d.py", "d"), claimed_by="a", min_interval=MINUTE).accepted
    assert files.dags() == {}


def test_an_incomplete_listing_removes_nothing(files: Files) -> None:
    transact(files.engine, sync, {"a.py": NOW, "b.py": NOW}, complete=True)

    transact(files.engine, sync, {"a.py": NOW}, complete=False)

    assert files.rows("select path from dag_file order by path") == [("a.py",), ("b.py",)]


@pytest.mark.parametrize(
    ("sort_mode", "expected"),
    [("modified_time", ["b.py", "c.py", "a.py"]), ("alphabetical", ["a.py", "b.py", "c.py"]), ("random_seeded_by_host", None)],
)
def test_new_files_come_in_the_order_of_the_sort_mode(sort_mode: str, expected: list[str] | None, files: Files) -> None:
    transact(files.engine, sync, {"a.py": NOW, "b.py": NOW + 2 * MINUTE, "c.py": NOW + MINUTE}, complete=True)

    def order(host: str) -> list[str]:
        with files.engine.begin() as connection:
            connection.exec_driver_sql("update dag_file set claimed_until = null")
        return [
            transact(files.engine, claim, claimed_by="a", lease_s=60, limit=1, sort_mode=sort_mode, host=host)[0].path
            for _ in range(3)
        ]

    if expected:
        assert order("host") == expected
    else:
        orders = {host: order(host) for host in "abcdef"}
        assert all(sorted(found) == ["a.py", "b.py", "c.py"] for found in orders.values())
        assert order("a") == orders["a"] and len({tuple(found) for found in orders.values()}) > 1


def test_a_file_that_is_always_the_newest_does_not_starve_other_files(files: Files) -> None:
    transact(files.engine, sync, {"new.py": NOW - MINUTE, "old.py": NOW - 2 * MINUTE}, complete=True)
    read = []
    for turn in range(6):
        files.clock.freeze(NOW + 2 * turn * MINUTE)
        (found,) = transact(files.engine, claim, claimed_by="a", lease_s=60, limit=1, sort_mode="modified_time", host="h")
        record(files.engine, parsed(found.path, modified_at=found.modified_at), claimed_by="a", min_interval=MINUTE)
        read.append(found.path)

    assert read == ["new.py", "old.py"] * 3


def test_an_import_error_keeps_the_time_it_was_first_seen_while_it_stays_the_same(files: Files) -> None:
    transact(files.engine, sync, {"d.py": NOW}, complete=True)
    for minute, message in enumerate(("first", "first", "second")):
        now = NOW + minute * MINUTE
        files.clock.freeze(now)
        transact(files.engine, claim, claimed_by="a", lease_s=60, limit=1, sort_mode="alphabetical", host="h")
        failed = ParsedFile(path="d.py", modified_at=NOW, duration_s=1, problem=Problem.make(message, 3, "trace"))
        assert record(files.engine, failed, claimed_by="a", min_interval=MINUTE).problem == failed.problem
        seen = NOW if message == "first" else now
        assert files.rows("select file, line, message, seen_at from import_error") == [("d.py", 3, message, seen)]


def test_a_dag_id_too_long_for_the_database_is_an_import_error(files: Files) -> None:
    transact(files.engine, sync, {"d.py": NOW}, complete=True)
    transact(files.engine, claim, claimed_by="a", lease_s=60, limit=1, sort_mode="alphabetical", host="h")
    long = "".join(chr(0x4E00 + number % 20000) for number in range(0, 9000 * 37, 37))

    result = record(files.engine, parsed("d.py", long), claimed_by="a", min_interval=MINUTE)

    assert result.problem is not None and result.problem.message.startswith("PostgreSQL cannot store a DAG of this file")
    assert files.errors().keys() == {"d.py"}
