"""The DAG files of a folder, and the moments at which the folder is listed."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from scheduler.dagfiles.watch import Listing, Watch

from .conftest import listing

DAG_FILE = "from paceline import DAG\nDAG('d')\n"
Watching = Callable[..., tuple[Watch, Listing]]


@pytest.fixture
def watching() -> Iterator[Watching]:
    """A watch of a folder, which lists it only if the kernel reports a change, and its first listing. It is closed at the end."""
    with contextlib.ExitStack() as closing:

        def start(folder: Path, **options: Any) -> tuple[Watch, Listing]:
            watch = Watch(folder, list_interval_s=3600, **options)
            closing.callback(watch.close)
            first = watch.look()
            assert first is not None and first.complete
            return watch, first

        yield start


def test_lists_python_files_that_name_a_dag_and_us_or_airflow(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(DAG_FILE)
    (tmp_path / "b.py").write_text("from AIRFLOW import Dag")
    (tmp_path / "module.py").write_text("x = 1")
    (tmp_path / "no_dag.py").write_text("import paceline")
    (tmp_path / "utf16.py").write_bytes(DAG_FILE.encode("utf-16"))
    (tmp_path / "dag.txt").write_text(DAG_FILE)
    os.mkfifo(tmp_path / "pipe.py")

    assert listing(tmp_path).files.keys() == {"a.py", "b.py", "utf16.py"}


def test_it_enters_folders_and_links_but_not_hidden_or_cached_ones_nor_circles(tmp_path: Path) -> None:
    for folder in ("team/deep", ".hidden", "__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "d.py").write_text(DAG_FILE)
    (tmp_path / ".dot.py").write_text(DAG_FILE)
    (tmp_path / "team/circle").symlink_to(tmp_path)
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "gone.py")
    (tmp_path / "linked.py").symlink_to(tmp_path / ".hidden/d.py")

    assert listing(tmp_path).files.keys() == {"team/deep/d.py", "linked.py"}


def test_a_file_name_that_is_not_utf8_is_logged_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "d.py").write_text(DAG_FILE)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_text(DAG_FILE)

    assert listing(tmp_path).files.keys() == {"d.py"}
    assert "its name is not UTF-8" in caplog.text


def test_a_new_version_changes_the_time_even_if_it_keeps_its_old_date(tmp_path: Path) -> None:
    path = tmp_path / "d.py"
    path.write_text(DAG_FILE)
    before = listing(tmp_path)

    def rewritten_with_an_old_date() -> bool:
        path.write_text(DAG_FILE + "# 2")
        os.utime(path, (1, 1))
        return listing(tmp_path).files["d.py"] > before.files["d.py"]

    eventually(rewritten_with_an_old_date)  # the clock of the file system takes a few milliseconds to go on


def test_changes_are_noticed_at_once_and_nothing_else_is(tmp_path: Path, watching: Watching) -> None:
    (tmp_path / "d.py").write_text(DAG_FILE)
    watch, known = watching(tmp_path)
    assert watch.look() is None

    for change, expected in (
        (lambda: (tmp_path / "new.py").write_text(DAG_FILE), {"d.py", "new.py"}),
        (lambda: (tmp_path / "new.py").rename(tmp_path / "other.py"), {"d.py", "other.py"}),
        (lambda: (tmp_path / "sub").mkdir() or (tmp_path / "sub/x.py").write_text(DAG_FILE), {"d.py", "other.py", "sub/x.py"}),
        (lambda: (tmp_path / "sub/x.py").unlink(), {"d.py", "other.py"}),
    ):
        change()
        found: set[str] = set()
        while found != expected:
            known = known.followed_by(eventually(watch.look, message=f"expected {expected}, saw {found}"))
            found = set(known.files)


def test_a_folder_whose_link_is_switched_is_listed_immediately(tmp_path: Path, watching: Watching) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(DAG_FILE)
    (tmp_path / "current").symlink_to(tmp_path / "one")
    watch, first = watching(tmp_path / "current")

    (tmp_path / "next").symlink_to(tmp_path / "two")
    (tmp_path / "next").rename(tmp_path / "current")
    second = watch.look()

    assert first is not None and first.files.keys() == {"one.py"}
    assert second is not None and second.files.keys() == {"two.py"}


def test_a_missing_folder_is_logged_once_and_found_when_it_appears(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = Watch(tmp_path / "dags", list_interval_s=3600)
    assert [watch.look() for _ in range(3)] == [None] * 3
    assert caplog.text.count("cannot be read: No such file or directory") == 1

    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/d.py").write_text(DAG_FILE)
    found = watch.look()

    watch.close()
    assert found is not None and found.files.keys() == {"d.py"}
    assert "can be read again" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_listing_with_an_unreadable_part_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    (tmp_path / "d.py").write_text(DAG_FILE)

    found = listing(tmp_path)

    (tmp_path / "locked").chmod(0o700)
    assert found == Listing(found.files, complete=False) and found.files.keys() == {"d.py"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_an_unreadable_folder_is_logged_and_not_treated_as_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "dags").mkdir(mode=0)
    watch = Watch(tmp_path / "dags", list_interval_s=3600)

    assert watch.look() is None and watch.look() is None

    watch.close()
    (tmp_path / "dags").chmod(0o700)
    assert caplog.text.count("cannot be read: Permission denied") == 1


def test_only_written_files_are_listed_and_modules_apart_from_dag_files(tmp_path: Path, watching: Watching) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(DAG_FILE)
    (tmp_path / "module.py").write_text("x = 1")
    watch, first = watching(tmp_path)

    (tmp_path / "a.py").write_text(DAG_FILE + "# 2")
    written = eventually(watch.look)
    (tmp_path / "module.py").write_text("x = 2")
    module = eventually(watch.look)
    (tmp_path / "module.py").write_text(DAG_FILE)
    became = eventually(watch.look)

    assert first is not None and (first.files.keys(), first.modules.keys()) == ({"a.py", "b.py"}, {"module.py"})
    assert (written.complete, written.files.keys(), written.modules.keys()) == (False, {"a.py"}, set())
    assert (module.complete, module.files.keys(), module.modules.keys()) == (False, set(), {"module.py"})
    assert became.complete and became.files.keys() == {"a.py", "b.py", "module.py"}


def test_a_file_counts_when_its_writer_has_closed_it(tmp_path: Path, watching: Watching) -> None:
    path = tmp_path / "d.py"
    path.write_text(DAG_FILE)
    watch, _ = watching(tmp_path)

    with path.open("w") as half:
        half.write("from scheduler ")
        half.flush()
        assert watch.look() is None
        half.write("import DAG\n")
    found = eventually(watch.look)

    assert found.files.keys() == {"d.py"}


def test_a_renamed_file_disappears_and_appears_in_one_listing(tmp_path: Path, watching: Watching) -> None:
    (tmp_path / "d.py").write_text(DAG_FILE)
    watch, _ = watching(tmp_path)

    (tmp_path / "d.py").rename(tmp_path / "moved.py")
    found = eventually(watch.look)

    assert found.complete
    assert found.files.keys() == {"moved.py"}


def test_a_file_written_again_in_the_same_tick_is_reported_again(tmp_path: Path, watching: Watching) -> None:
    path = tmp_path / "d.py"
    path.write_text(DAG_FILE)
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    # A file system with a stopped clock.
    watch, _ = watching(tmp_path, change_time=lambda status: moment.timestamp())

    path.write_text(DAG_FILE + "# 2")
    found = eventually(watch.look)

    assert (found.files, found.again) == ({"d.py": moment}, {"d.py"})


def test_a_change_that_the_kernel_does_not_report_is_found_at_the_next_check(tmp_path: Path, watching: Watching) -> None:
    (tmp_path / "d.py").write_text(DAG_FILE)
    watch, _ = watching(tmp_path, check_interval_s=0.01)
    watch._events.close()  # type: ignore[union-attr]
    watch._events = None

    (tmp_path / "e.py").write_text(DAG_FILE)

    assert eventually(watch.look).files.keys() == {"d.py", "e.py"}


def test_a_special_file_or_a_file_too_large_to_search_blocks_nothing(tmp_path: Path, watching: Watching) -> None:
    watch, first = watching(tmp_path)
    assert first.files == {}

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").rename(tmp_path / "pipe.py")
    with (tmp_path / "large.py").open("wb") as large:
        large.truncate(100 << 30)
    (tmp_path / "d.py").write_text(DAG_FILE)

    # The large one is for a child to read, under its limits.
    found: set[str] = set()
    eventually(lambda: found.update((watch.look() or Listing({}, {})).files) or found >= {"large.py", "d.py"})
    assert found == {"large.py", "d.py"}


def test_a_folder_is_watched_although_its_link_came_later(tmp_path: Path, watching: Watching) -> None:
    dags, elsewhere = tmp_path / "dags", tmp_path / "elsewhere"
    dags.mkdir()
    elsewhere.mkdir()
    watch, _ = watching(dags)

    (elsewhere / "a.py").write_text(DAG_FILE)
    (dags / "team").symlink_to(elsewhere)
    linked = eventually(watch.look)
    (elsewhere / "b.py").write_text(DAG_FILE)
    written = eventually(watch.look)

    assert linked.files.keys() == {"team/a.py"}
    assert written.files.keys() == {"team/b.py"}


def test_more_changes_than_the_kernel_keeps_lose_none(tmp_path: Path, watching: Watching) -> None:
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    watch, _ = watching(tmp_path)

    for _ in range(kept // 2 + 1):
        for name in ("a.txt", "b.txt"):  # the kernel keeps equal events in a row once
            (tmp_path / name).open("a").close()
    (tmp_path / "d.py").write_text(DAG_FILE)
    found = eventually(watch.look)

    assert found.files.keys() == {"d.py"}
