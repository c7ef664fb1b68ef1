"""Bundles that schedulers read over ssh, from a real sshd with keys of its own on the loopback interface."""

import getpass
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.processes import free_port
from support.waiting import eventually

from paceline.authoring.connection import Connection
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher

from .conftest import Files, source
from .test_bundle_sources import Reading, Repository

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
#: Where sshd of root confines the process that talks to unknown clients.
PRIVSEP = Path("/run/sshd")

pytestmark = pytest.mark.skipif(SSHD is None, reason="sshd is not installed (Debian: openssh-server)")


@dataclass(frozen=True, slots=True)
class Server:
    """An ssh server. It accepts `key`, and `known_hosts` has its key."""

    port: int
    key: Path
    stranger: Path
    known_hosts: Path
    log: Path

    def url(self, folder: Path) -> str:
        return f"git+ssh://{getpass.getuser()}@127.0.0.1:{self.port}{folder}"


@pytest.fixture
def reading(files: Files) -> Reading:
    return Reading(files)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    home = tmp_path / "ssh"
    home.mkdir(mode=0o700)
    for name in ("host", "key", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", home / name], check=True)
    (home / "authorized").write_text((home / "key.pub").read_text())
    found = Server(free_port(), home / "key", home / "stranger", home / "known", home / "log")
    kind, public, _ = (home / "host.pub").read_text().split()
    found.known_hosts.write_text(f"[127.0.0.1]:{found.port} {kind} {public}\n")
    (home / "config").write_text(
        f"ListenAddress 127.0.0.1\nPort {found.port}\nHostKey {home}/host\nAuthorizedKeysFile {home}/authorized\n"
        f"PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
    )
    if os.geteuid() == 0:
        PRIVSEP.mkdir(mode=0o755, exist_ok=True)
    assert SSHD is not None
    with found.log.open("w") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(home / "config")], stdin=subprocess.DEVNULL, stderr=log)
    try:
        eventually(lambda: "Server listening" in found.log.read_text(), timeout=30, message=found.log.read_text)
        yield found
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("place", ["connection", "file"])
def test_a_repository_behind_ssh_is_read_with_a_key(reading: Reading, repository: Repository, server: Server, place: str) -> None:
    commit = repository.commit("Sales every day", a=source("a"))
    extra = json.dumps({"private_key": server.key.read_text(), "known_hosts_file": str(server.known_hosts)})
    own = Connection(conn_id="own", conn_type="git", extra=extra)
    transact(reading.files.engine, connections.add, [own], Cipher.of(reading.files.settings, make=True))
    options = "connection=own" if place == "connection" else f"key={server.key}&known_hosts={server.known_hosts}"
    sources = reading.sources(f"sales={server.url(repository.folder)}#ref=main&{options}")

    reading.read(sources)

    assert reading.bundle() == (1, None), server.log.read_text()
    ((origin, message),) = reading.files.rows("select origin, message from bundle_version")
    assert origin.endswith(f"at {commit}") and message == "Sales every day"
    assert "Accepted publickey" in server.log.read_text()

    repository.commit(a=source("a", task_id="two"))
    reading.read(sources)
    assert reading.bundle() == (2, None)


@pytest.mark.parametrize(("key", "known", "said"), [
    ("stranger", True, "Permission denied (publickey)"), ("key", False, "Host key verification failed"),
])  # fmt: skip
def test_a_key_that_the_server_does_not_know_and_a_server_that_nobody_knows_are_refused(
    reading: Reading, repository: Repository, server: Server, key: str, known: bool, said: str
) -> None:
    repository.commit(a=source("a"))
    if not known:
        server.known_hosts.write_text("")
    options = f"key={getattr(server, key)}&known_hosts={server.known_hosts}"

    reading.read(reading.sources(f"sales={server.url(repository.folder)}#{options}"))

    number, problem = reading.bundle()
    assert number is None and problem is not None and said in problem and "\n" not in problem


def test_a_server_that_is_away_is_one_sentence(reading: Reading, repository: Repository) -> None:
    repository.commit(a=source("a"))
    reading.read(reading.sources(f"sales=git+ssh://git@127.0.0.1:{free_port()}{repository.folder}"))
    problem = reading.bundle()[1]
    assert problem is not None and "Connection refused" in problem and "\n" not in problem
