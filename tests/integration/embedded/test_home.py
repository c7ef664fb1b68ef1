"""One stack for each home, and folders that no other user can reach."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import folders

from paceline.exceptions import ConflictError, PacelineError
from scheduler.embedded import home
from scheduler.settings import Paths, Settings

NOBODY = (65534, 65534)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """On the disk: folders in memory may run no program and have no lists of access."""
    with folders.short_folder(memory=False) as folder:
        yield folder


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


def test_the_next_owner_waits_for_children_of_a_killed_owner(tmp_path):
    # The owner starts a child that inherits the lock as a guardian does, prints its ID and is killed; the child ends at SIGTERM.
    source = """
        import subprocess, sys, time
        from pathlib import Path
        from scheduler.embedded import home
        with home.lock(Path(sys.argv[1])) as children:
            print(subprocess.Popen(["sleep", "600"], pass_fds=[children]).pid, flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(source), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        leftover = int(owner.stdout.readline())
        owner.kill()
    lines = []

    def end_leftover(line):
        lines.append(line)
        os.kill(leftover, signal.SIGTERM)

    with home.lock(tmp_path, say=end_leftover):
        assert lines == [f"Processes of an earlier stack on {tmp_path} are still ending; waiting for them."]


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

    with pytest.raises(PacelineError, match="run belongs to another user: remove it"):
        home.private_folder(tmp_path / "run", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands folders to another user")
def test_a_private_folder_of_a_stranger_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", *NOBODY)

    with pytest.raises(PacelineError, match="belongs to another user"):
        home.private_folder(tmp_path / "run", None)


def reads(path, uid):
    """Whether a process of this user can read a file."""
    command = ["cat", str(path)]
    return subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lets another user in")
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o770])
def test_a_closed_folder_lets_one_user_pass_and_no_other(short_folder, mode):
    inner = short_folder / "closed" / "inner"
    inner.mkdir(parents=True)
    file = inner / "file"
    file.touch()
    file.chmod(0o644)
    inner.parent.chmod(mode)
    short_folder.chmod(0o755)

    home.let_pass(inner, NOBODY)
    home.let_pass(inner, NOBODY)

    assert reads(file, NOBODY[0])
    assert not reads(file, NOBODY[0] - 1)
    assert stat.S_IMODE(inner.parent.stat().st_mode) & 0o007 == 0
    listed = subprocess.run(
        ["ls", str(inner.parent)], user=NOBODY[0], group=NOBODY[1], extra_groups=[], capture_output=True, check=False
    )
    assert listed.returncode != 0, "it may pass, and not look"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lets another user in")
def test_program_files_installed_under_a_closed_umask_become_readable_for_the_server_alone(short_folder):
    program, library = short_folder / "x" / "bin" / "postgres", short_folder / "x" / "lib" / "library.so"
    for path, mode in ((program, 0o700), (library, 0o600)):
        path.parent.mkdir(mode=0o700, parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)

    home.let_read(short_folder / "x", NOBODY)

    assert [(reads(one, NOBODY[0]), reads(one, NOBODY[0] - 1)) for one in (program, library)] == [(True, False)] * 2
    assert subprocess.run([program], user=NOBODY[0], group=NOBODY[1], extra_groups=[], check=False).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lets another user in")
def test_an_entry_for_one_user_gives_other_users_no_rights_that_the_mask_withheld(short_folder):
    other = (NOBODY[0] - 1, NOBODY[1] - 1)
    home.grant(short_folder, other[0], 7)
    short_folder.chmod(0o700)  # of a folder with a list, these bits are the mask
    assert home.rights(short_folder, other) == 0

    home.grant(short_folder, NOBODY[0], 1)

    assert (home.rights(short_folder, NOBODY), home.rights(short_folder, other)) == (1, 0)
