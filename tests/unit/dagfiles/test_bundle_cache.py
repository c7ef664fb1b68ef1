import multiprocessing
import os
import stat
import threading
from pathlib import Path

import pytest
from support.bundles import Published, cache_of, files_in, versions_in

from paceline.exceptions import PacelineError
from scheduler.dagfiles import bundle_cache
from scheduler.store.dags.bundles import Identity

FIRST = {"d.py": "A = 1", "lib.py": "B = 1", "data/names.csv": "a,b", "run.sh": "#!/bin/sh"}


def test_a_version_becomes_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    published = Published(FIRST, executable=["run.sh"])

    path = cache_of(published, tmp_path).path(1)

    assert path == tmp_path / published.digest(1)
    assert files_in(path) == FIRST
    modes = {str(each.relative_to(path)): stat.S_IMODE(each.stat().st_mode) for each in path.rglob("*")}
    assert modes == {"d.py": 0o444, "lib.py": 0o444, "data": 0o555, "data/names.csv": 0o444, "run.sh": 0o555}
    assert stat.S_IMODE(path.stat().st_mode) == 0o555


def test_a_version_is_read_once_by_all_processes(tmp_path: Path) -> None:
    published = Published(FIRST)
    cache_of(published, tmp_path).path(1)
    published.read.clear()

    cache_of(published, tmp_path).path(1)

    assert published.read == []


def test_only_new_files_of_a_version_are_read(tmp_path: Path) -> None:
    published = Published(FIRST, {**FIRST, "lib.py": "B = 2"}, executable=["run.sh"])
    cache = cache_of(published, tmp_path)
    first = cache.path(1)
    published.read.clear()

    second = cache.path(2)

    assert [published.content[sha256] for sha256 in published.read] == [b"B = 2"]
    assert files_in(second) == {**FIRST, "lib.py": "B = 2"}
    assert not any((first / name).samefile(second / name) for name in FIRST), "a change of one must not change the other"
    assert os.access(second / "run.sh", os.X_OK)


def test_a_file_that_a_task_changed_is_not_copied(tmp_path: Path) -> None:
    published = Published(FIRST, {**FIRST, "new.py": ""})
    cache = cache_of(published, tmp_path)
    changed = cache.path(1) / "lib.py"
    changed.chmod(0o644)
    changed.write_text("B = 3")

    assert files_in(cache.path(2))["lib.py"] == "B = 1"


def test_a_content_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    published = Published(FIRST)
    sha256 = next(entry.digest for entry in published.tree(1) if entry.path == "lib.py")
    published.content[sha256] = b"import evil"

    with pytest.raises(
        PacelineError, match=rf"^The stored content of lib\.py in bundle version 1 is not what was deployed.*{sha256}"
    ):
        cache_of(published, tmp_path).path(1)

    assert versions_in(tmp_path) == set()


def test_a_missing_content_is_named(tmp_path: Path) -> None:
    published = Published(FIRST)
    del published.content[published.tree(1)[0].digest]

    with pytest.raises(PacelineError, match=r"The store lacks 1 file\(s\) of bundle version 1, such as d\.py"):
        cache_of(published, tmp_path).path(1)

    assert versions_in(tmp_path) == set()


class _Tampered(Published):
    """A store in which somebody has replaced a file of a version by another one that is stored."""

    def identity(self, version_id: int) -> Identity:
        return super().identity(1)


def test_a_list_of_files_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    published = _Tampered(FIRST, {**FIRST, "lib.py": "A = 1"})

    with pytest.raises(PacelineError, match=r"^The stored list of files of bundle version 2 is not what was deployed"):
        cache_of(published, tmp_path).path(2)

    assert versions_in(tmp_path) == set()


@pytest.mark.parametrize("name", ["../out.py", "/etc/out.py", "a/../../out.py", "", "."])
def test_a_path_outside_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PacelineError, match="outside its folder"):
        cache_of(Published({name: "x"}), tmp_path / "bundles").path(1)

    assert versions_in(tmp_path / "bundles") == set()
    assert not (tmp_path / "out.py").exists()


def test_equal_files_of_a_version_are_read_once(tmp_path: Path) -> None:
    published = Published({"a.py": "same", "b/a.py": "same", "b/__init__.py": "", "__init__.py": ""})

    assert files_in(cache_of(published, tmp_path).path(1)) == {
        "a.py": "same",
        "b/a.py": "same",
        "b/__init__.py": "",
        "__init__.py": "",
    }
    assert len(published.read) == 2


def test_one_process_fetches_while_others_wait(tmp_path: Path) -> None:
    is_fetching, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        is_fetching.set()
        assert may_go_on.wait(30)

    published = Published(FIRST, before_blobs=block)
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(cache_of(published, tmp_path).path(1))) for _ in range(4)]
    threads[0].start()
    assert is_fetching.wait(30)
    for thread in threads[1:]:
        thread.start()
    may_go_on.set()
    for thread in threads:
        thread.join(30)

    assert paths == [tmp_path / published.digest(1)] * 4
    assert len(published.read) == len(FIRST)


def test_processes_that_ask_for_a_new_folder_at_once_all_get_it_and_keep_it(tmp_path: Path) -> None:
    """None waits until the others have ended: each shares the lock of a folder for as long as it runs."""
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(8)
    processes = [fork.Process(target=_keep_all, args=(tmp_path, together)) for _ in range(together.parties)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0] * together.parties


def _keep_all(folder: Path, together: "multiprocessing.synchronize.Barrier") -> None:
    published = Published(*({"d.py": str(number)} for number in range(40)))
    cache = cache_of(published, folder)
    for version in range(1, 41):
        together.wait(30)
        cache.path(version)


def test_the_least_recently_used_versions_go(tmp_path: Path) -> None:
    published = Published(*({"d.py": str(number)} for number in range(6)))

    for version in (1, 2, 3, 1, 4):
        cache = cache_of(published, tmp_path, keep=3)
        cache.path(version)
        cache.release(version)

    assert versions_in(tmp_path) == {published.digest(version) for version in (3, 1, 4)}
    assert {path.stem for path in tmp_path.glob("*.lock")} == versions_in(tmp_path)


def test_a_version_in_use_stays(tmp_path: Path) -> None:
    published = Published(*({"d.py": str(number)} for number in range(4)))
    using = cache_of(published, tmp_path, keep=1)
    path = using.path(1)

    for version in (2, 3):
        cache = cache_of(published, tmp_path, keep=1)
        cache.path(version)
        cache.release(version)
    assert files_in(path) == {"d.py": "0"}

    using.release(1)
    cache_of(published, tmp_path, keep=1).path(4)
    assert versions_in(tmp_path) == {published.digest(4)}


def _use(folder: Path, published: Published, is_used: "multiprocessing.synchronize.Event") -> None:
    cache_of(published, folder, keep=1).path(1)
    is_used.set()
    threading.Event().wait()


def test_a_killed_process_uses_nothing_any_more(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    published = Published(*({"d.py": str(number)} for number in range(3)))
    is_used = fork.Event()
    process = fork.Process(target=_use, args=(tmp_path, published, is_used))
    process.start()
    assert is_used.wait(30)

    cache = cache_of(published, tmp_path, keep=1)
    cache.path(2)
    cache.release(2)
    assert published.digest(1) in versions_in(tmp_path)

    process.kill()
    process.join()
    cache.path(3)
    assert versions_in(tmp_path) == {published.digest(3)}


def _die_while_fetching(folder: Path) -> None:
    cache_of(Published(FIRST, before_blobs=lambda: os._exit(9)), folder).path(1)


@pytest.mark.long
def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    published = Published(FIRST, {"other.py": ""})
    process = multiprocessing.get_context("fork").Process(target=_die_while_fetching, args=(tmp_path,))
    process.start()
    process.join()
    assert versions_in(tmp_path) == {f".{published.digest(1)}"}

    assert files_in(cache_of(published, tmp_path).path(1)) == FIRST
    assert versions_in(tmp_path) == {published.digest(1)}


@pytest.mark.long
def test_what_a_killed_process_left_goes_with_the_next_version(tmp_path: Path) -> None:
    published = Published(FIRST, {"other.py": ""})
    process = multiprocessing.get_context("fork").Process(target=_die_while_fetching, args=(tmp_path,))
    process.start()
    process.join()

    cache_of(published, tmp_path).path(2)

    assert versions_in(tmp_path) == {published.digest(2)}


def test_a_version_from_before_the_machine_was_started_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = Published(FIRST)
    cache = cache_of(published, tmp_path)
    emptied = cache.path(1) / "lib.py"
    cache.release(1)
    emptied.chmod(0o644)
    emptied.write_text("")

    boot = tmp_path.parent / f"{tmp_path.name}-boot"
    boot.write_text("another start of this machine")
    monkeypatch.setattr(bundle_cache, "BOOT", boot)

    assert files_in(cache_of(published, tmp_path).path(1)) == FIRST


@pytest.mark.long
def test_many_processes_ask_for_many_versions_at_once(tmp_path: Path) -> None:
    published = Published(*({"d.py": str(number), "lib.py": "same"} for number in range(5)))
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_ask_for_all, args=(tmp_path, published, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0] * 4


def _ask_for_all(folder: Path, published: Published, first: int) -> None:
    cache = cache_of(published, folder, keep=1)
    for number in range(50):
        version = (first + number) % 5 + 1
        path = cache.path(version)
        assert files_in(path) == {"d.py": str(version - 1), "lib.py": "same"}
        cache.release(version)
