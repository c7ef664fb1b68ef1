"""POSIX access control lists on Linux. They give rights to a single user, where mode bits would give them to all users."""

import errno
import os
import struct
from pathlib import Path

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
