"""Who owns a home folder: the lock of a running stack, and what root's PostgreSQL user may reach."""

import contextlib
import fcntl
import os
import pwd
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scheduler.embedded import access_lists
from scheduler.exceptions import ConflictError, PacelineError

#: PostgreSQL refuses to run as root; as root, its processes get this user, made on first use.
SERVER_USER = "paceline-postgres"
#: Seconds the children of a stack that was killed may take to end before the next stack gives up on them.
LEFTOVERS_S = 40.0


@contextlib.contextmanager
def lock(home: Path, *, say: Callable[[str], None] = print) -> Iterator[int]:
    """Own the home until the end of the block; yields a descriptor that every guardian must keep open.

    Two locks: one of the owner, which tells a second owner at once, and one shared with the guardians, which outlives
    a killed owner until its last child has ended. ConflictError if another stack runs on this home.
    """
    home.mkdir(parents=True, exist_ok=True)
    with _opened(home / ".owner.lock") as owner, _opened(home / ".children.lock") as children:
        if not _locked(owner):
            pid = os.pread(owner, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ConflictError(
                f"A Paceline stack already runs on {home} (process {pid}): stop it, or set PACELINE_HOME to another folder."
            )
        os.ftruncate(owner, 0)
        os.pwrite(owner, f"{os.getpid()}\n".encode(), 0)
        _wait_for_leftovers(children, home, say)
        yield children


def server_identity(data: Path) -> tuple[int, int] | None:
    """User and group id PostgreSQL must run as; None is our own.

    Root hands over to the owner of the data, else to SERVER_USER.
    """
    if os.geteuid() != 0:
        if data.exists() and data.stat().st_uid != os.geteuid():
            owner = data.stat().st_uid
            raise PacelineError(f"{data} belongs to user {owner}: run as that user, or set PACELINE_HOME to another folder.")
        return None
    if data.exists() and data.stat().st_uid != 0:
        return data.stat().st_uid, data.stat().st_gid
    entry = _server_user()
    return entry.pw_uid, entry.pw_gid


def private_folder(folder: Path, identity: tuple[int, int] | None) -> None:
    """Make a folder of mode 0700 that belongs to this identity; refuse one that somebody else put there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    allowed = {os.geteuid()} | ({identity[0]} if identity else set())
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in allowed:
        raise PacelineError(f"{folder} belongs to somebody else: remove it, or set PACELINE_HOME to a folder with a shorter path.")
    folder.chmod(0o700)
    if identity is not None:
        os.chown(folder, *identity)


def let_pass(folder: Path, identity: tuple[int, int]) -> None:
    """Let this user pass through a folder and all above it, and nobody else."""
    for place in (folder, *folder.parents):
        _let(place, identity, 1)


def let_read(folder: Path, identity: tuple[int, int]) -> None:
    """Let this user read and run the server's program files, whatever the umask of their installation."""
    let_pass(folder.parent, identity)
    for place in (folder, *folder.rglob("*")):
        _let(place, identity, 5 if place.stat().st_mode & stat.S_IXUSR else 4)


def _let(place: Path, identity: tuple[int, int], bits: int) -> None:
    """By an entry of its own in the access list: mode bits would open the folder to every user of the machine, for good."""
    if access_lists.rights(place, identity) & bits != bits:
        with _explained(place):
            access_lists.grant(place, identity[0], bits)


def _server_user() -> pwd.struct_passwd:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(SERVER_USER)
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", SERVER_USER]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        return pwd.getpwnam(SERVER_USER)
    except (OSError, subprocess.CalledProcessError, KeyError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        raise PacelineError(
            f"PostgreSQL refuses to run as root and the user {SERVER_USER} could not be made ({reason}): "
            "run as another user, or set PACELINE_DATABASE_URL."
        ) from None


@contextlib.contextmanager
def _explained(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PacelineError(
            f"The user PostgreSQL runs as cannot be let into {place} ({error.strerror}): set PACELINE_HOME to a folder that"
            " every user can pass, or run as another user than root."
        ) from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_leftovers(descriptor: int, home: Path, say: Callable[[str], None]) -> None:
    deadline = time.monotonic() + LEFTOVERS_S
    said = False
    while not _locked(descriptor):
        if not said:
            say(f"Processes of an earlier stack on {home} are still ending; waiting for them.")
            said = True
        if time.monotonic() >= deadline:
            raise ConflictError(f"Processes of an earlier stack on {home} do not end: stop them, then start again.")
        time.sleep(0.1)
