"""Bundles that schedulers read from Git and from file systems of fsspec."""

import base64
import functools
import io
import json
import os
import signal
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from support.processes import free_port, is_running
from support.waiting import eventually

from paceline.authoring.connection import Connection
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.bundles import BundleManager
from scheduler.dagfiles.sources import Sources
from scheduler.settings import Settings
from scheduler.settings.sections import Bundles
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher

from .conftest import Files, source


class Repository:
    """A Git repository on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.org", *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message: str = "A change", **files: str) -> str:
        for name, text in files.items():
            path = self.folder / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")


class Reading:
    """The sources of some schedulers, each read on request."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.published = 0

    def sources(self, text: str, **options: Any) -> Sources:
        settings = self.files.settings.model_copy(update={"bundles": Bundles(sources=text, **{"poll_interval": 0.001, **options})})
        return Sources(self.files.engine, settings, self._publish)

    def _publish(self) -> None:
        self.published += 1

    def read(self, sources: Sources) -> None:
        """Read the sources, which are due at once or in a moment."""
        started: list[int] = []

        def some() -> bool:
            started.append(self.read_due(sources))
            return started[-1] > 0

        eventually(some, timeout=30)

    def read_due(self, sources: Sources) -> int:
        """Read what is due, and return how many sources that were."""
        sources._ask_at = 0.0
        threads = sources.read_due()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return len(threads)

    def bundle(self, name: str = "sales") -> tuple[int | None, str | None]:
        """The number of the wanted version, and the problem of the source."""
        (row,) = self.files.rows(
            "select v.number, b.problem from bundle b left join bundle_version v on v.id = b.wanted_id where b.name = %(name)s",
            name=name,
        )
        return row[0], row[1]

    def paths(self, name: str = "sales") -> list[str]:
        """The files of the newest version."""
        return [path for (path,) in self.files.rows(
            "select path from bundle_path where bundle = %(name)s and last is null order by 1", name=name
        )]  # fmt: skip


@pytest.fixture
def reading(files: Files) -> Reading:
    return Reading(files)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_a_commit_is_a_version_with_its_message_and_its_id(reading: Reading, repository: Repository) -> None:
    first = repository.commit("Sales every day\n\nBecause.", dags__a=source("a"), dags__lib__names="x = 1", other="1")
    sources = reading.sources(f"sales=git+file://{repository.folder}#folder=dags&ref=main")

    reading.read(sources)
    assert reading.published == 1
    rows = reading.files.rows("select number, message, origin, created_by from bundle_version")
    assert [(number, message, by) for number, message, _, by in rows] == [(1, "Sales every day", "source")]
    assert rows[0][2].endswith(f"#ref=main&folder=dags at {first}")
    assert reading.paths() == ["a.py", "lib/names.py"]

    # The same commit, and then one that changes nothing in the folder of the bundle.
    reading.read(sources)
    repository.commit(other="2")
    reading.read(sources)
    assert reading.published == 1 and reading.bundle() == (1, None)

    repository.commit(dags__a=source("a", task_id="two"))
    reading.read(sources)
    assert reading.published == 2 and reading.bundle() == (2, None)


def test_a_rollback_stays_until_the_source_has_other_content(reading: Reading, repository: Repository) -> None:
    sources = reading.sources(f"sales=git+file://{repository.folder}")
    for task_id in ("one", "two"):
        repository.commit(a=source("a", task_id=task_id))
        reading.read(sources)
    with reading.files.engine.begin() as connection:
        connection.exec_driver_sql("update bundle set wanted_id = (select id from bundle_version where number = 1)")

    repository.git("commit", "--quiet", "--allow-empty", "--message", "nothing")
    reading.read(reading.sources(f"sales=git+file://{repository.folder}"))  # a scheduler that has just started
    assert reading.bundle() == (1, None)

    repository.commit(a=source("a", task_id="three"))
    reading.read(sources)
    assert reading.bundle() == (3, None)


def test_a_source_that_fails_keeps_the_version_and_says_why_until_it_is_read_again(
    reading: Reading, repository: Repository
) -> None:
    repository.commit(a=source("a"))
    sources = reading.sources(f"sales=git+file://{repository.folder}#ref=main")
    reading.read(sources)
    away = repository.folder.rename(repository.folder.with_name("away"))

    reading.read(sources)
    number, problem = reading.bundle()
    assert number == 1 and problem is not None and problem.startswith("git cannot read git+file://") and "\n" not in problem

    away.rename(repository.folder)
    reading.read(sources)
    assert reading.bundle() == (1, None)


@pytest.mark.parametrize(("fragment", "said"), [
    ("ref=nowhere", "has no branch or tag 'nowhere'"),
    ("folder=nowhere", "nowhere"),
    (f"ref={'0' * 40}", "not our ref"),
    ("connection=missing", "There is no connection 'missing'"),
])  # fmt: skip
def test_what_the_repository_does_not_have_is_one_sentence(
    reading: Reading, repository: Repository, fragment: str, said: str
) -> None:
    repository.commit(a=source("a"))

    reading.read(reading.sources(f"sales=git+file://{repository.folder}#{fragment}"))

    number, problem = reading.bundle()
    assert number is None and problem is not None and said in problem and "\n" not in problem


def test_a_branch_with_a_similar_name_is_another_one_and_tags_and_commits_are_refs(
    reading: Reading, repository: Repository
) -> None:
    first = repository.commit(a=source("a"))
    repository.git("tag", "-a", "v1", "-m", "release")
    repository.git("checkout", "--quiet", "-b", "feature/main")
    repository.commit(b=source("b"))
    url = f"git+file://{repository.folder}"

    reading.read(reading.sources(f"branch={url}#ref=main tag={url}#ref=v1 commit={url}#ref={first} head={url}"))

    assert {name: reading.paths(name) for name in ("branch", "tag", "commit", "head")} == {
        "branch": ["a.py"], "tag": ["a.py"], "commit": ["a.py"], "head": ["a.py", "b.py"],
    }  # fmt: skip


def test_nothing_of_a_repository_runs_or_leads_out_of_it(reading: Reading, repository: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.commit(c=source("c"))
    (repository.folder / ".gitattributes").write_text("*.py filter=evil\n")
    repository.git("config", "filter.evil.smudge", f"touch {tmp_path}/ran")
    repository.commit(a=source("a"))
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.folder), "module")
    repository.git("commit", "--quiet", "--message", "submodule")
    hook = repository.folder / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    sources = reading.sources(f"sales=git+file://{repository.folder}")
    reading.read(sources)
    assert reading.paths() == ["a.py"] and not (tmp_path / "ran").exists()

    (repository.folder / "secrets.py").symlink_to("/etc/passwd")
    repository.commit("link")
    reading.read(sources)
    number, problem = reading.bundle()
    assert number == 1 and problem is not None and "'secrets.py' is a link that leads out of the folder" in problem


def test_git_that_hangs_is_ended(reading: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nsleep 600 & echo $! > "$(dirname $0)/pid"; wait\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    reading.read(reading.sources("sales=git+https://git.example.org/sales", read_timeout=1))

    problem = reading.bundle()[1]
    assert problem == "git+https://git.example.org/sales did not answer within 1 s (bundles.read_timeout)."
    pid = int((program.parent / "pid").read_text())
    eventually(lambda: not is_running(pid), timeout=30)


def test_a_repository_behind_a_git_daemon_is_read(reading: Reading, repository: Repository) -> None:
    repository.commit(a=source("a"))
    port = free_port()
    command = ["git", "daemon", f"--base-path={repository.folder.parent}", "--export-all", "--listen=127.0.0.1", f"--port={port}"]
    daemon = subprocess.Popen(command, start_new_session=True)
    try:
        sources = reading.sources(f"sales=git+git://127.0.0.1:{port}/repository#ref=main")

        def is_read() -> bool:
            reading.read(sources)
            return reading.bundle() == (1, None)

        eventually(is_read, timeout=30)
    finally:
        os.killpg(daemon.pid, signal.SIGTERM)
        daemon.wait()


@pytest.mark.parametrize("place", ["connection", "file"])
def test_a_login_goes_to_its_server_only_and_never_into_an_argument(reading: Reading, tmp_path: Path, place: str) -> None:
    seen: list[str | None] = []
    right = f"Basic {base64.b64encode(b'ann:secret').decode()}"

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            login = self.headers["Authorization"]
            seen.append(login)
            self.send_response(403 if login == right else 401)
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    (tmp_path / "token").write_text("secret\n")
    settings = reading.files.settings
    own = Connection(conn_id="own", conn_type="git", login="ann", password="secret")
    transact(reading.files.engine, connections.add, [own], Cipher.of(settings, make=True))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    fragment = "connection=own" if place == "connection" else f"key={tmp_path}/token"
    user = "" if place == "connection" else "ann@"
    try:
        reading.read(reading.sources(f"sales=git+http://{user}127.0.0.1:{server.server_port}/sales#{fragment}"))
    finally:
        server.shutdown()
        server.server_close()

    assert seen[-1] == right
    problem = reading.bundle()[1]
    assert problem is not None and "403" in problem and "secret" not in problem


def test_ssh_gets_the_key_of_the_connection_in_a_private_file_and_knows_its_servers(
    reading: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n'
        'while [ "$1" != -i ]; do shift; done\n'
        f'stat -c %a "$2" > {tmp_path}/mode; cat "$2" > {tmp_path}/key\n'
        'echo "Host key verification failed." >&2\nexit 255\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    extra = json.dumps({"private_key": "a\nkey", "known_hosts_file": "/etc/known"})
    own = Connection(conn_id="own", conn_type="git", extra=extra)
    transact(reading.files.engine, connections.add, [own], Cipher.of(reading.files.settings, make=True))

    reading.read(reading.sources("sales=git+ssh://git@git.example.org/sales#connection=own"))

    arguments = (tmp_path / "arguments").read_text()
    assert (
        "BatchMode=yes" in arguments and "StrictHostKeyChecking=yes" in arguments and "UserKnownHostsFile=/etc/known" in arguments
    )
    assert (tmp_path / "mode").read_text() == "600\n" and (tmp_path / "key").read_text() == "a\nkey\n"
    assert reading.bundle()[1] == "git cannot read git+ssh://git@git.example.org/sales: Host key verification failed."


def test_one_scheduler_at_a_time_reads_a_source_and_a_killed_one_is_replaced(reading: Reading, repository: Repository) -> None:
    repository.commit(a=source("a"))
    text = f"sales=git+file://{repository.folder}"
    first, second = reading.sources(text, poll_interval=3600), reading.sources(text, poll_interval=3600)
    assert reading.read_due(first) == 1 and reading.read_due(second) == 0

    with reading.files.engine.begin() as connection:  # another one was killed while it read
        connection.exec_driver_sql("update bundle set read_at = null, read_until = clock_timestamp() + interval '1 hour'")
    assert reading.read_due(second) == 0
    with reading.files.engine.begin() as connection:
        connection.exec_driver_sql("update bundle set read_until = clock_timestamp()")
    assert reading.read_due(second) == 1


def test_a_source_that_left_the_settings_leaves_no_problem(reading: Reading) -> None:
    reading.read(reading.sources("sales=git+file:///nowhere"))
    assert reading.bundle()[1] is not None
    reading.read_due(reading.sources(""))
    assert reading.bundle() == (None, None)


@pytest.fixture
def bucket() -> Iterator[Callable[[str, str], None]]:
    """Writes files into the file system in memory."""
    memory = fsspec.filesystem("memory")

    def write(path: str, text: str) -> None:
        memory.pipe_file(f"/bucket/{path}", text.encode())

    yield write
    memory.rm("/bucket", recursive=True)


def test_a_prefix_is_published_when_one_of_its_objects_changes(reading: Reading, bucket: Callable[[str, str], None]) -> None:
    bucket("dags/a.py", source("a"))
    bucket("dags/lib/names.py", "x = 1")
    bucket("dags/.hidden/b.py", source("b"))
    bucket("dags2/c.py", source("c"))
    sources = reading.sources("sales=memory://bucket/dags")

    reading.read(sources)
    reading.read(sources)
    assert reading.paths() == ["a.py", "lib/names.py"] and reading.published == 1

    bucket("dags/lib/names.py", "x = 2")
    reading.read(sources)
    assert reading.bundle() == (2, None) and reading.published == 2

    fsspec.filesystem("memory").rm("/bucket/dags", recursive=True)
    reading.read(sources)
    assert reading.bundle() == (2, "memory://bucket/dags has no files.")


def test_an_archive_at_a_url_is_a_bundle(reading: Reading, tmp_path: Path) -> None:
    def pack(**files: str) -> None:
        with tarfile.open(tmp_path / "sales.tar.gz", "w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(f"{name}.py")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))

    pack(a=source("a"))
    sources = reading.sources(f"sales=file://{tmp_path}/sales.tar.gz")
    reading.read(sources)
    assert reading.paths() == ["a.py"]

    (tmp_path / "sales.tar.gz").write_bytes(b"no archive")
    reading.read(sources)
    number, problem = reading.bundle()
    assert number == 1 and problem is not None and "The archive is damaged" in problem


def test_the_limits_of_a_bundle_hold_for_what_is_read(reading: Reading, bucket: Callable[[str, str], None]) -> None:
    for number in range(5):
        bucket(f"dags/d{number}.py", source(f"d{number}"))
    reading.read(reading.sources("sales=memory://bucket/dags", max_files=4))
    assert reading.bundle()[1] == "memory://bucket/dags has more files than bundles.max_files allows: 4."


def test_a_published_source_becomes_live(files: Files, settings: Settings, repository: Repository) -> None:
    repository.commit(a=source("a"))
    changed = settings.model_copy(update={"bundles": Bundles(sources=f"sales=git+file://{repository.folder}")})
    engine = database.create(changed)
    cache = BundleCache.of(settings, StoredContents.over(functools.partial(transact, engine), settings))
    manager = BundleManager(engine, changed, lambda: "a", cache)
    manager.start()
    try:
        eventually(lambda: files.rows("select dag_id, bundle from dag where is_active") == [("a", "sales")], timeout=60)
    finally:
        manager.stop()
        engine.dispose()
