"""One stack a home, and folders that nobody else can reach."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

from scheduler.cli import home
from scheduler.exceptions import ConflictError, PacelineError
from scheduler.settings import Paths, Settings

NOBODY = (65534, 65534)


def test_a_second_owner_is_refused_with_the_process_of_the_first(tmp_path):
    with home.lock(tmp_path):
        with pytest.raises(
            ConflictError, match=rf"already runs on {tmp_path} \(process {os.getpid()}\): stop it, or set PACELINE_HOME"
        ):
            with home.lock(tmp_path):
                pass


def test_two_homes_are_owned_side_by_side(tmp_path):
    with home.lock(tmp_path / "first") as first, home.lock(tmp_path / "second") as second:
        assert first != second


def test_a_home_is_free_again_after_its_owner(tmp_path):
    for _ in range(2):
        with home.lock(tmp_path) as children:
            assert os.fstat(children).st_nlink == 1


def test_the_next_owner_waits_for_children_of_a_killed_one(tmp_path):
    # The owner starts a child that inherits the lock as a guardian does, tells its id and is killed; the child ends at SIGTERM.
    source = """
        import subprocess, sys, time
        from pathlib import Path
        from scheduler.cli import home
        with home.lock(Path(sys.argv[1])) as children:
            print(subprocess.Popen(["sleep", "600"], pass_fds=[children]).pid, flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(source), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        leftover = int(owner.stdout.readline())
        owner.kill()
    said = []

    def end_leftover(line):
        said.append(line)
        os.kill(leftover, signal.SIGTERM)

    with home.lock(tmp_path, say=end_leftover):
        assert said == [f"Processes of an earlier stack on {tmp_path} are still ending; waiting for them."]


def test_children_that_do_not_end_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(home, "LEFTOVERS_S", 0.2)
    with (tmp_path / ".children.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConflictError, match="do not end: stop them, then start again"):
            with home.lock(tmp_path, say=lambda _: None):
                pass


def test_the_socket_folder_is_in_the_home_unless_the_name_is_too_long(tmp_path):
    short, long = tmp_path / "h", tmp_path / ("h" * 120)

    assert Settings(paths=Paths(home=short)).run_folder == short / "run" or len(str(tmp_path)) > 75
    folder = Settings(paths=Paths(home=long)).run_folder
    assert len(os.fsencode(folder / ".s.PGSQL.5432.lock")) <= 100
    assert folder != Settings(paths=Paths(home=long.with_name("g" * 120))).run_folder


def test_a_private_folder_is_open_to_its_owner_only(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)

    home.private_folder(folder, None)

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_link_in_place_of_a_private_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PacelineError, match="run belongs to somebody else: remove it"):
        home.private_folder(tmp_path / "run", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands folders to another user")
def test_a_private_folder_of_a_stranger_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", *NOBODY)

    with pytest.raises(PacelineError, match="belongs to somebody else"):
        home.private_folder(tmp_path / "run", None)


def test_passing_opens_a_folder_for_search_and_for_nothing_else(tmp_path):
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)

    home.let_pass(inner, NOBODY)

    assert stat.S_IMODE(inner.parent.stat().st_mode) == 0o701


def test_program_files_installed_under_a_closed_umask_become_readable(tmp_path):
    program, library = tmp_path / "bin" / "postgres", tmp_path / "lib" / "library.so"
    for path, mode in ((program, 0o700), (library, 0o600)):
        path.parent.mkdir(mode=0o700)
        path.touch()
        path.chmod(mode)

    home.let_read(tmp_path, NOBODY)

    assert stat.S_IMODE(program.stat().st_mode) == 0o705
    assert stat.S_IMODE(library.stat().st_mode) == 0o604
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o705
