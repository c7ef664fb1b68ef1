"""POSIX access control lists of Linux: a right for one user, where mode bits could only give it to everybody."""

import errno
import os
import struct
from pathlib import Path

ATTRIBUTE = "system.posix_acl_access"
VERSION = struct.pack("<I", 2)
ENTRY = struct.Struct("<HHI")
OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
#: Instead of an id, for entries that name nobody.
NOBODY = 0xFFFFFFFF

#: Tag and id, and the rights as the bits of a mode.
Entries = dict[tuple[int, int], int]


def rights(place: Path, identity: tuple[int, int]) -> int:
    """What a user with one group may do: 4 read, 2 write, 1 run or search."""
    found, (uid, gid) = place.stat(), identity
    entries = _entries(place)
    if found.st_uid == uid:
        return entries[OWNER, NOBODY]
    mask = entries.get((MASK, NOBODY), 7)
    if (USER, uid) in entries:
        return entries[USER, uid] & mask
    of_groups = [entries[GROUP, NOBODY]] if found.st_gid == gid else []
    of_groups += [entries[NAMED_GROUP, gid]] if (NAMED_GROUP, gid) in entries else []
    return max(of_groups) & mask if of_groups else entries[OTHER, NOBODY]


def grant(place: Path, uid: int, bits: int) -> None:
    """Give one user these rights on top of what it has, and nobody else any. OSError where the file system has no lists."""
    entries = _entries(place)
    mask = entries.get((MASK, NOBODY), 7)
    limited = (USER, GROUP, NAMED_GROUP)
    # The mask is about to grow: what it took from the others so far is taken from their own entries.
    entries = {key: value & mask if key[0] in limited else value for key, value in entries.items()}
    entries[USER, uid] = entries.get((USER, uid), 0) | bits
    entries[MASK, NOBODY] = 0
    for key, value in entries.items():
        if key[0] in limited:
            entries[MASK, NOBODY] |= value
    os.setxattr(place, ATTRIBUTE, VERSION + b"".join(ENTRY.pack(tag, value, one) for (tag, one), value in sorted(entries.items())))


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
        return {(tag, one): value for tag, value, one in ENTRY.iter_unpack(data[len(VERSION) :])}
    mode = place.stat().st_mode
    return {(OWNER, NOBODY): mode >> 6 & 7, (GROUP, NOBODY): mode >> 3 & 7, (OTHER, NOBODY): mode & 7}
