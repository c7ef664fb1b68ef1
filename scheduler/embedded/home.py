"""Ownership of a home folder: the lock of a running stack, and the access of root's PostgreSQL user."""

import contextlib
import errno
import fcntl
import os
import pwd
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.exceptions import ConflictError, PacelineError

#: PostgreSQL refuses to run as root. When Paceline runs as root, PostgreSQL runs as this user, created on first use.
SERVER_USER = "paceline-postgres"
#: Seconds for which a new stack waits for the children of a killed stack.
LEFTOVERS_S = 40.0


@contextlib.contextmanager
def lock(home: Path, *, say: Callable[[str], None] = print) -> Iterator[int]:
    """Own the home until the end of the block. Yields a descriptor that every guardian must keep open.

    There are two locks. The owner's lock rejects a second owner immediately. The other is shared with the guardians and stays
    locked after the owner is killed, until its last child has exited. ConflictError if another stack runs on this home.
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
    """Return the user and group ID to run PostgreSQL as; None to keep the user of this process.

    Root runs it as the owner of the data, or else as SERVER_USER.
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
    """Create a folder of mode 0700 that belongs to this identity. PacelineError if it belongs to another user."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    allowed = {os.geteuid()} | ({identity[0]} if identity else set())
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in allowed:
        raise PacelineError(f"{folder} belongs to another user: remove it, or set PACELINE_HOME to a folder with a shorter path.")
    folder.chmod(0o700)
    if identity is not None:
        os.chown(folder, *identity)


def let_pass(folder: Path, identity: tuple[int, int]) -> None:
    """Allow only this user to search a folder and all its parents."""
    for place in (folder, *folder.parents):
        _let(place, identity, 1)


def let_read(folder: Path, identity: tuple[int, int]) -> None:
    """Allow this user to read and execute the server's program files, independent of the umask of their installation."""
    let_pass(folder.parent, identity)
    for place in (folder, *folder.rglob("*")):
        _let(place, identity, 5 if place.stat().st_mode & stat.S_IXUSR else 4)


def _let(place: Path, identity: tuple[int, int], bits: int) -> None:
    """Add an entry to the access control list: mode bits would open the folder to every user of the machine permanently."""
    if rights(place, identity) & bits == bits:
        return
    try:
        grant(place, identity[0], bits)
    except OSError as error:
        raise PacelineError(
            f"The user that runs PostgreSQL cannot get access to {place} ({error.strerror}): set PACELINE_HOME to a folder that"
            " every user can search, or run as another user than root."
        ) from None


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
            f"PostgreSQL refuses to run as root and the user {SERVER_USER} could not be created ({reason}): "
            "run as another user, or set PACELINE_DATABASE_URL."
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
    reported = False
    while not _locked(descriptor):
        if not reported:
            say(f"Processes of an earlier stack on {home} are still ending; waiting for them.")
            reported = True
        if time.monotonic() >= deadline:
            raise ConflictError(f"Processes of an earlier stack on {home} do not end: stop them, then start again.")
        time.sleep(0.1)


ATTRIBUTE = "system.posix_acl_access"
VERSION = struct.pack("<I", 2)
ENTRY = struct.Struct("<HHI")
OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
#: The ID in entries that name no user or group.
NOBODY = 0xFFFFFFFF

#: Maps a tag and ID to rights, as mode bits.
Entries = dict[tuple[int, int], int]


def rights(place: Path, identity: tuple[int, int]) -> int:
    """Return the rights of a user with one group: 4 read, 2 write, 1 execute or search."""
    status, (uid, gid) = place.stat(), identity
    entries = _entries(place)
    if status.st_uid == uid:
        return entries[OWNER, NOBODY]
    mask = entries.get((MASK, NOBODY), 7)
    if (USER, uid) in entries:
        return entries[USER, uid] & mask
    of_groups = [entries[GROUP, NOBODY]] if status.st_gid == gid else []
    of_groups += [entries[NAMED_GROUP, gid]] if (NAMED_GROUP, gid) in entries else []
    return max(of_groups) & mask if of_groups else entries[OTHER, NOBODY]


def grant(place: Path, uid: int, bits: int) -> None:
    """Add rights for one user only. OSError if the file system does not support access control lists."""
    entries = _entries(place)
    mask = entries.get((MASK, NOBODY), 7)
    limited = (USER, GROUP, NAMED_GROUP)
    # The mask is about to grow. The rights that it denied to the other entries are removed from these entries instead.
    entries = {key: value & mask if key[0] in limited else value for key, value in entries.items()}
    entries[USER, uid] = entries.get((USER, uid), 0) | bits
    entries[MASK, NOBODY] = 0
    for key, value in entries.items():
        if key[0] in limited:
            entries[MASK, NOBODY] |= value
    packed = b"".join(ENTRY.pack(tag, value, number) for (tag, number), value in sorted(entries.items()))
    os.setxattr(place, ATTRIBUTE, VERSION + packed)


def _entries(place: Path) -> Entries:
    try:
        data = os.getxattr(place, ATTRIBUTE)
    except AttributeError:  # not Linux
        data = b""
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.ENOTSUP}:
            raise
        data = b""
    if data:
        return {(tag, number): value for tag, value, number in ENTRY.iter_unpack(data[len(VERSION) :])}
    mode = place.stat().st_mode
    return {(OWNER, NOBODY): mode >> 6 & 7, (GROUP, NOBODY): mode >> 3 & 7, (OTHER, NOBODY): mode & 7}
