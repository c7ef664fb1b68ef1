"""The DAGs folder as a bundle: each change is a version, to which the DAG versions refer."""

import os
from pathlib import Path

import pytest
from support.waiting import eventually

from scheduler.dagfiles import pinned_folder
from scheduler.dagfiles.supervise import DagFileManager
from scheduler.settings.sections import Bundles
from scheduler.store.dags import blobs, bundles
from scheduler.store.db.rows import EngineReader
from scheduler.store.read import bundles as shown

from .conftest import MINUTE, NOW, Files, source


def pinning(files: Files, **more: object) -> DagFileManager:
    files.settings = files.settings.model_copy(update={"bundles": Bundles(pin_dags_folder=True, **more)})  # type: ignore[arg-type]
    return files.manager()


def pinned(files: Files) -> dict[str, dict[str, bytes]]:
    """By DAG ID: the folder to which its newest version is pinned."""
    rows = files.rows("select d.dag_id, v.bundle_version_id from dag d join dag_version v on v.id = d.version_id")
    found = {}
    with files.engine.connect() as connection:
        reader = EngineReader(connection)
        for dag_id, version_id in rows:
            entries = bundles.tree(reader, version_id)
            contents = dict(blobs.unpacked(blobs.packed(reader, {entry.digest for entry in entries}), None))
            found[dag_id] = {entry.path: contents[entry.digest] for entry in entries}
    return found


def test_a_dag_is_pinned_to_the_folder_as_it_was_parsed(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_folder, "SHARED_S", 0.0)
    files.write("a.py", "from lib import X\n" + source("a"))
    files.write("b.py", source("b"))
    files.write("lib.py", "X = 1")
    files.write("data/rates.csv", "1")
    manager = pinning(files)
    files.read_all(manager, now=NOW)
    assert {name: sorted(folder) for name, folder in pinned(files).items()} == {
        "a": ["a.py", "b.py", "data/rates.csv", "lib.py"], "b": ["a.py", "b.py", "data/rates.csv", "lib.py"]
    }  # fmt: skip
    assert files.rows("select number, state, created_by from bundle_version") == [(1, "ready", "a")]

    # Parsed again without a change, nothing is new.
    files.read_all(manager, now=NOW + MINUTE)
    assert files.dags() == {"a": ("a.py", True, 1), "b": ("b.py", True, 1)}

    # Another DAG file is none of the code of a DAG.
    files.write("b.py", source("b", task_id="two"))
    files.turn_until(manager, lambda: files.dags()["b"][2] == 2, now=NOW + MINUTE)
    files.read_all(manager, now=NOW + 2 * MINUTE)
    assert files.dags() == {"a": ("a.py", True, 1), "b": ("b.py", True, 2)}

    # A module changes the DAGs of all files, also of those that may import it in a task only. So does a file that tasks read.
    # All are parsed at once, although the clock stands still.
    files.write("lib.py", "X = 2")
    files.turn_until(manager, lambda: files.dags() == {"a": ("a.py", True, 2), "b": ("b.py", True, 3)})
    files.write("data/rates.csv", "2")
    files.turn_until(manager, lambda: files.dags() == {"a": ("a.py", True, 3), "b": ("b.py", True, 4)})
    assert {folder["data/rates.csv"] for folder in pinned(files).values()} == {b"2"}

    # What it was before is that version again.
    files.write("data/rates.csv", "1")
    files.turn_until(manager, lambda: files.dags() == {"a": ("a.py", True, 2), "b": ("b.py", True, 3)})

    with files.engine.connect() as connection:
        (folder,), versions = shown.all_bundles(connection), shown.versions(connection, "dags-folder", 10)
        ids = {one["version_number"]: one["id"] for one in versions}
        changed = [shown.changes(connection, ids[number], ids[number - 1]) for number in (2, 3)]
    assert (folder["live_version"], folder["dag_count"]) == (3, 2) and folder["live_at"] is not None
    assert [one["dag_ids"] for one in versions] == [["a", "b"]] * len(ids)
    assert [(one["files"]["changed"], one["dags"]["changed"]) for one in changed] == [(["b.py"], ["b"]), (["lib.py"], ["a", "b"])]


def test_the_folder_is_walked_once_for_many_files(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: [listed.append(str(folder)), listdir(folder)][1])
    monkeypatch.setattr(pinned_folder, "FRESH_S", 60.0)
    for number in range(20):
        files.write(f"d{number}.py", source(f"d{number}"))

    files.read_all(pinning(files), now=NOW)

    assert len(pinned(files)) == 20
    assert 1 <= listed.count(os.path.realpath(files.settings.dags_folder)) <= 3


def test_files_without_changes_rest_although_the_folder_is_pinned(files: Files) -> None:
    files.write("a.py", source("a"))
    files.read_all(pinning(files), now=NOW)
    assert files.rows("select next_parse_at - parsed_at > interval '40 minutes' from dag_file") == [(True,)]


def test_a_file_that_changes_while_it_is_parsed_is_parsed_again(files: Files, tmp_path: Path) -> None:
    """No version has a graph of one folder and the code of another."""
    gate = tmp_path / "gate"
    files.write("lib.py", "X = 'old'")
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists():\n    time.sleep(0.01)\nfrom lib import X\n"
    files.write("a.py", wait + source("a").replace('"@daily",', '"@daily", description=X,'))
    manager = pinning(files)
    files.clock.freeze(NOW)
    eventually(lambda: manager.run_once().started == ("a.py",), timeout=30)
    files.write("lib.py", "X = 'new'")
    gate.touch()

    files.read_all(manager, now=NOW)

    assert files.rows("select data->>'description' from dag_version") == [("new",)]
    assert pinned(files)["a"]["lib.py"] == b"X = 'new'"


def test_a_folder_that_can_be_no_bundle_is_not_pinned_and_the_log_says_why(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.write("a.py", source("a"))
    outside = files.settings.home / "secret"
    outside.parent.mkdir(parents=True, exist_ok=True)
    outside.write_text("secret")
    (files.settings.dags_folder / "link.txt").symlink_to(outside)

    files.read_all(pinning(files), now=NOW)

    assert files.rows("select bundle_version_id from dag_version") == [(None,)]
    assert [record.getMessage() for record in caplog.records if "not pinned" in record.getMessage()] == [
        "The DAGs folder is not pinned, so runs execute what it has when a task starts:"
        " 'link.txt' is a link that leads out of the folder: put a copy in its place."
    ]


def test_large_files_do_not_stop_the_dags(files: Files) -> None:
    files.write("a.py", source("a"))
    files.write("data.bin", b"x" * 2000)

    files.read_all(pinning(files, max_file_bytes=1000), now=NOW)

    assert files.dags() == {"a": ("a.py", True, 1)}
    assert files.rows("select count(*) from bundle_blob") == [(0,)]


def test_what_was_saved_a_moment_ago_and_is_not_in_a_version_is_named(files: Files) -> None:
    folder = files.settings.dags_folder
    for path in ("a.py", "b.py", "lib.py", "old.py"):
        files.write(path, source(path.removesuffix(".py")))
    pinned_one = pinned_folder.PinnedFolder(files.settings).look()
    assert pinned_one is not None
    entries = pinned_one.entries.values()

    def missing(**settings: object) -> list[str]:
        found = files.settings.model_copy(update=settings)
        return pinned_folder.just_saved(found, entries, others={"b.py"})[0]

    assert missing() == [] == missing(dags_folder=folder / "gone")
    files.write("lib.py", source("lib"))  # the same content
    files.write("b.py", "another DAG")
    assert missing() == []
    files.write("lib.py", "changed")
    files.write("new.py", "")
    assert missing() == ["lib.py", "new.py"]
    assert missing(bundles=Bundles(max_files=2)) == [], "a folder that cannot be pinned"
