"""The contents of the files of bundles: compressed in the table bundle_blob, or as objects at `bundles.code_url`.

The row of an object has no content. It keeps the object: a process that stores or deletes one locks its row until the commit.
"""

import contextlib
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import PacelineError, UnreachableError
from scheduler.store.db.rows import Reader

#: Bytes of compressed files that one statement stores or reads.
BATCH_BYTES = 8 << 20
#: Bytes before compression of the objects that one request stores or reads. Small objects are transferred side by side.
OBJECT_BYTES = 32 << 20
#: A version that uses an object may be stored while this is sent.
LONGEST_TRANSFER = "10min"


@dataclass(frozen=True, slots=True)
class Packed:
    """A compressed content, which is empty if it is an object at `bundles.code_url`, and its size."""

    digest: str
    content: Any
    byte_count: int


@dataclass(frozen=True, slots=True)
class _Size:
    digest: str
    size: int


def store(connection: Connection, digests: Collection[str], read: Callable[[str], bytes], *, url: str | None) -> None:
    """Store the contents that are missing, and lock the others, so that retention does not delete them before the commit.

    An object that no version uses is stored again: its deletion may have begun.
    """
    known = connection.exec_driver_sql(
        """
        select encode(b.digest, 'hex') from bundle_blob b
         where b.digest = any(%s::bytea[])
           and (length(b.content) > 0 or exists (select from bundle_path p where p.digest = b.digest))
         order by b.digest for key share of b
        """,
        (_bytea(digests),),
    )
    missing = {digest: zlib.compress(read(digest)) for digest in sorted(set(digests) - set(known.scalars()))}
    if url is not None:
        _store_objects(connection, missing, url)
        return
    for batch in _batches(((digest, len(packed)) for digest, packed in missing.items()), BATCH_BYTES):
        connection.exec_driver_sql(
            "insert into bundle_blob (digest, content) select * from unnest(%s::bytea[], %s::bytea[]) on conflict do nothing",
            (_bytea(batch), [missing[digest] for digest in batch]),
        )


def packed(reader: Reader, digests: Iterable[str]) -> Iterator[Packed]:
    """The stored contents with these digests, in any order."""
    sizes = reader.objects(
        _Size, "select encode(digest, 'hex') as digest, length(content) as size from bundle_blob where digest = any(%s::bytea[])",
        (_bytea(digests),),
    )  # fmt: skip
    for batch in _batches(((one.digest, one.size) for one in sizes), BATCH_BYTES):
        yield from reader.objects(
            Packed,
            """
            select encode(b.digest, 'hex') as digest, b.content,
                   coalesce((select max(p.byte_count) from bundle_path p where p.digest = b.digest), 0) as byte_count
              from bundle_blob b where b.digest = any(%s::bytea[])
            """,
            (_bytea(batch),),
        )


def unpacked(found: Iterable[Packed], url: str | None) -> Iterator[tuple[str, bytes]]:
    """The contents by their digests, in any order. The caller checks them, and whether all are there.

    One that was replaced by something else may come cut off.
    """
    objects = dict[str, int]()
    for one in found:
        if one.content:
            yield one.digest, _unpacked(bytes(one.content), one.byte_count)
        else:
            objects[one.digest] = one.byte_count
    if objects and url is None:
        raise PacelineError("The files of bundles are objects, and bundles.code_url is not set: set it to their address.")
    for batch in _batches(objects.items(), OBJECT_BYTES):
        for digest, content in _read_objects(batch, url or ""):
            yield digest, _unpacked(content, objects[digest])


def delete_objects(digests: Collection[str], url: str | None) -> None:
    """Delete the objects whose rows are deleted in this transaction. UnreachableError."""
    if digests and url is not None:
        files, paths = _objects(url, digests)
        with _reachable("deleted from"):
            for path in paths.values():
                with contextlib.suppress(FileNotFoundError):
                    files.rm_file(path)


def _store_objects(connection: Connection, missing: dict[str, bytes], url: str) -> None:
    # The update locks a row that is there already, or waits for its deletion.
    connection.exec_driver_sql(
        "insert into bundle_blob (digest, content) select d, ''::bytea from unnest(%s::bytea[]) d"
        " on conflict (digest) do update set digest = excluded.digest",
        (_bytea(missing),),
    )
    connection.exec_driver_sql(f"set local idle_in_transaction_session_timeout = '{LONGEST_TRANSFER}'")
    files, paths = _objects(url, missing)
    for batch in _batches(((digest, len(content)) for digest, content in missing.items()), OBJECT_BYTES):
        with _reachable("stored at"):
            if _is_local(files):
                for digest in batch:
                    files.makedirs(files._parent(paths[digest]), exist_ok=True)
            files.pipe({paths[digest]: missing[digest] for digest in batch})


def _read_objects(digests: Collection[str], url: str) -> Iterator[tuple[str, bytes]]:
    files, paths = _objects(url, digests)
    answers = files.cat(list(paths.values()), on_error="return")
    for digest, path in paths.items():
        answer = answers.get(path, FileNotFoundError())
        if isinstance(answer, bytes):
            yield digest, answer
        elif not isinstance(answer, FileNotFoundError):
            with _reachable("read from"):
                raise answer


def _objects(url: str, digests: Iterable[str]) -> tuple[Any, dict[str, str]]:
    """The file system of fsspec, and the path of each content in it."""
    import fsspec

    files, base = fsspec.url_to_fs(url)
    return files, {digest: f"{str(base).rstrip('/')}/{digest[:2]}/{digest}" for digest in digests}


def _is_local(files: Any) -> bool:
    return files.protocol in {"file", ("file", "local")}


@contextlib.contextmanager
def _reachable(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each file system has its own errors
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(": .")
        raise UnreachableError(f"The files of bundles cannot be {what} bundles.code_url: {reason}.") from None


def _unpacked(content: bytes, byte_count: int) -> bytes:
    """What was compressed, up to one byte more than its size; nothing if it is no compressed content."""
    try:
        return zlib.decompressobj().decompress(content, byte_count + 1)
    except zlib.error:
        return b""


def _bytea(digests: Iterable[str]) -> list[str]:
    """Digests in the input format of bytea."""
    return [f"\\x{digest}" for digest in digests]


def _batches(sizes: Iterable[tuple[str, int]], most: int) -> Iterator[list[str]]:
    """Digests in batches of about so many bytes."""
    batch, total = list[str](), 0
    for digest, size in sizes:
        if batch and total + size > most:
            yield batch
            batch, total = [], 0
        batch.append(digest)
        total += size
    if batch:
        yield batch
