"""Copies of logs at logs.url: written by the worker, read on another machine."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scheduler.settings import Settings, log_paths
from workers.process import log_copies as copying
from workers.process.log_copies import LogCopies, Notes

NAMES = {"dag_id": "d", "run_id": "r?*/x", "task_id": "t", "map_index": -1}


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read checks the file system of the copies."""
    monkeypatch.setattr(log_paths, "FRESH_S", 0.0)


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    settings.run_folder.mkdir(parents=True, exist_ok=True)
    return settings.model_copy(update={"logs": settings.logs.model_copy(update={"url": str(tmp_path / "copies")})})


def elsewhere(settings: Settings, home: Path) -> Settings:
    """The settings of another machine."""
    return settings.model_copy(update={"paths": settings.paths.model_copy(update={"home": home, "logs_folder": None})})


def log(settings: Settings, number: int = 1) -> Path:
    return Path(log_paths.try_path(settings.logs_folder, **NAMES, try_number=number))  # type: ignore[arg-type]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def rounds(copies: LogCopies, number: int = 2) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(number):
            copies.copy(pool)


def test_a_log_that_ended_is_read_from_another_machine(settings: Settings, tmp_path: Path) -> None:
    write(log(settings), "line\n")
    write(Path(log_paths.rendered_path(str(log(settings)))), "{}")
    Notes(settings, os.getpid()).add(str(log(settings)))
    rounds(LogCopies(settings, list))
    other = elsewhere(settings, tmp_path / "other")
    found = log_paths.local(other, log(other))

    assert found.read_text() == "line\n" and found != log(other)
    assert log_paths.local(settings, log(settings)) == log(settings)
    assert log_paths.local(other, log(other, 2)) == log(other, 2)
    assert not list(settings.run_folder.glob("logs-*"))


def test_a_running_log_is_copied_when_it_grows_and_once_more_when_its_process_was_killed(
    settings: Settings, tmp_path: Path
) -> None:
    write(log(settings), "1\n")
    running = [str(log(settings))]
    copies = LogCopies(settings, lambda: running)
    other = elsewhere(settings, tmp_path / "other")
    rounds(copies, 1)
    assert log_paths.local(other, log(other)).read_text() == "1\n"

    write(log(settings), "1\n2\n")
    rounds(copies, 1)
    assert log_paths.local(other, log(other)).read_text() == "1\n2\n"
    write(log(settings), "1\n2\nkilled\n")
    running.clear()
    rounds(copies, 1)

    assert log_paths.local(other, log(other)).read_text() == "1\n2\nkilled\n"


def test_a_copy_to_an_unreachable_file_system_is_retried(settings: Settings, tmp_path: Path) -> None:
    write(log(settings), "line\n")
    Notes(settings, os.getpid()).add(str(log(settings)))
    copies = LogCopies(settings, list)
    # No folder can be created here.
    (tmp_path / "copies").touch()
    rounds(copies, 3)
    other = elsewhere(settings, tmp_path / "other")
    assert not log_paths.local(other, log(other)).exists()
    assert list(settings.run_folder.glob("logs-*")), "the notes are gone before the copies are there"

    (tmp_path / "copies").unlink()
    rounds(copies)
    assert log_paths.local(other, log(other)).read_text() == "line\n"
    assert not list(settings.run_folder.glob("logs-*"))


def test_the_notes_of_a_killed_worker_are_adopted(settings: Settings, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    write(log(settings), "line\n")
    Notes(settings, child).add(str(log(settings)))
    copies = LogCopies(settings, list)
    copies._adopt()
    rounds(copies)
    other = elsewhere(settings, tmp_path / "other")

    assert log_paths.local(other, log(other)).read_text() == "line\n"


def test_only_files_of_the_logs_folder_are_copied(settings: Settings, tmp_path: Path) -> None:
    secret = tmp_path / "secret.log"
    secret.write_text("secret")
    link = log(settings)
    link.parent.mkdir(parents=True)
    link.symlink_to(secret)
    notes = Notes(settings, os.getpid())
    for path in (str(secret), str(link), f"{settings.logs_folder}/../secret.log"):
        notes.add(path)
    rounds(LogCopies(settings, list))

    assert [path for path in (tmp_path / "copies").rglob("*") if path.is_file()] == []


def test_deleting_a_run_deletes_its_copies(settings: Settings, tmp_path: Path) -> None:
    write(log(settings), "line\n")
    Notes(settings, os.getpid()).add(str(log(settings)))
    rounds(LogCopies(settings, list))
    log_paths.delete_run(settings, "d", "r?*/x")
    log_paths.delete_run(settings, "d", "never")
    other = elsewhere(settings, tmp_path / "other")

    assert not log_paths.local(other, log(other)).exists()
    assert copying.started(settings.model_copy(update={"logs": settings.logs.model_copy(update={"url": None})}), list) is None
