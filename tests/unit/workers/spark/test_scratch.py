"""The folders of JVMs: kept while their process lives, removed when that was killed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workers.spark.sessions.jvm import Scratch

HOLDS = "import sys; from workers.spark.sessions.jvm import Scratch; print(Scratch().path, flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_folder_of_a_killed_process_is_deleted_at_the_next_start_and_not_before(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        (left / "blocks").mkdir()

        mine = Scratch()
        assert left.is_dir()

        other.kill()
        other.wait()
        Scratch().remove()
    assert list(folder.iterdir()) == [mine.path]
    mine.remove()
    mine.remove()
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_only_linked_to_or_not_yet_held_stays(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "lock").touch()
    (folder / "paceline-jvm-link").symlink_to(folder / "elsewhere")
    (folder / "paceline-jvm-new").mkdir()

    Scratch().remove()

    assert (folder / "elsewhere" / "lock").exists()
    assert (folder / "paceline-jvm-new").exists()
