"""The folders of returned DataFrames: every attempt has its own, and each deletion leaves the folders of others."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.settings import data_folder
from scheduler.settings.data_folder import Place

NAMES = ["a", "A", "a/b", "a%2Fb", "..", ".", "_a", "%5Fa", "a*", "[a]", "a{b,c}", "a?", "ü", "", "a\\b", "x" * 300, "x" * 299]


def place(folder: Path, **other: object) -> Place:
    names = {"dag_id": "d", "run_id": "r", "run_key": 7, "task_id": "t", "map_index": -1, "try_number": 1, "dispatch_id": "x"}
    return Place(data_url=f"file://{folder}", **(names | other))  # type: ignore[arg-type]


def write(one: Place, name: str = "part.parquet") -> Path:
    folder = Path(one.url.removeprefix("file://"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"12345")
    return folder


def test_no_two_names_share_a_component_and_none_is_hidden_or_a_pattern() -> None:
    parts = [data_folder.component(name) for name in NAMES]

    assert len(set(parts)) == len(NAMES)
    assert not [part for part in parts if set(part) & set("/*?[]{}\\") or part[0] in "._" or len(part.encode()) > 255]


def test_two_dispatches_never_share_a_folder(tmp_path: Path) -> None:
    one = place(tmp_path)
    others = [
        replace(one, dispatch_id="y"), replace(one, try_number=2), replace(one, run_key=8), replace(one, map_index=0),
        replace(one, task_id="u"), replace(one, run_id="s"), replace(one, dag_id="e"),
    ]  # fmt: skip

    assert len({one.url, *(other.url for other in others)}) == 8
    assert one.url == f"file://{tmp_path}/d/r/t/r7-try1-x"
    assert replace(one, map_index=0).url == f"file://{tmp_path}/d/r/t/0/r7-try1-x"


def test_a_try_deletes_files_of_earlier_tries_and_none_of_later_tries_or_other_runs(tmp_path: Path) -> None:
    mine = place(tmp_path, try_number=10)
    earlier = [write(replace(mine, try_number=number)) for number in (1, 9)]
    kept = [
        write(mine),
        write(replace(mine, dispatch_id="y")),
        write(replace(mine, try_number=11)),
        write(replace(mine, run_key=8, try_number=1)),
    ]

    data_folder.delete_earlier(mine)

    assert not [folder for folder in earlier if folder.exists()]
    assert all(folder.exists() for folder in kept)


def test_the_deletion_of_a_run_deletes_its_attempts_and_leaves_files_of_users_and_of_a_recreated_run(tmp_path: Path) -> None:
    mine = place(tmp_path, run_id="r[1]*")
    gone = [write(mine), write(replace(mine, map_index=3)), write(replace(mine, task_id="u"))]
    anew, like_it = write(replace(mine, run_key=8)), write(replace(mine, run_id="r1x"))
    report = gone[0].parents[1] / "report.html"
    report.write_text("by a user", encoding="utf-8")

    data_folder.delete_run(mine.data_url, "d", "r[1]*", 7)

    assert not [folder for folder in gone if folder.exists()]
    assert not gone[2].parent.exists()
    assert anew.exists() and like_it.exists() and report.exists()


def test_with_its_last_attempt_the_folders_of_a_run_go_but_not_the_data_folder(tmp_path: Path) -> None:
    mine = place(tmp_path)
    write(mine)

    data_folder.delete(mine)
    data_folder.delete(mine)
    data_folder.delete_run(mine.data_url, "d", "r", 7)

    assert list(tmp_path.iterdir()) == []


def test_an_object_store_is_used_through_fsspec() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    mine = replace(place(Path("/")), data_url="memory://bucket/data")
    for one in (mine, replace(mine, map_index=1), replace(mine, run_key=8)):
        files.pipe(f"{one.url}/part.parquet", b"12345")

    assert sum(data_folder.sizes(mine.url).values()) == 5
    data_folder.delete_run(mine.data_url, "d", "r", 7)

    assert files.find("memory://bucket/data") == [f"/{replace(mine, run_key=8).url.removeprefix('memory://')}/part.parquet"]


def test_files_that_cannot_be_deleted_are_logged_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = replace(place(tmp_path), data_url="nosuch://bucket")

    with caplog.at_level(logging.WARNING, logger="paceline.data"):
        data_folder.delete(one)
        data_folder.delete_run(one.data_url, "d", "r", 7)

    assert len(caplog.messages) == 3
    assert all("nosuch://bucket/d/r" in message and "cannot be deleted" in message for message in caplog.messages)
