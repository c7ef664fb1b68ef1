"""Bundles: named folders of DAG files, modules and data. Their versions are stored as content, and any process can make the folder.

A version is identified by the digest of its paths, contents and modes. Equal files are stored once, and a version costs what
differs from the one before: see `bundle_path` in the schema.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg2.extras import Json
from sqlalchemy import Connection

from paceline.exceptions import NotFoundError, PacelineError
from scheduler.store.dags import blobs
from scheduler.store.dags.blobs import Packed
from scheduler.store.db.rows import EngineReader, Reader

#: The revision of the schema whose processes execute the code of a version. An older worker would look into its own DAGs folder.
SINCE = "0003"
#: The bundle that is the DAGs folder of the schedulers, with `bundles.pin_dags_folder`.
DAGS_FOLDER = "dags-folder"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a version is: its bundle, and the digest of its files."""

    bundle: str
    digest: str


@dataclass(frozen=True, slots=True)
class FolderDag:
    """The newest version of a DAG of the DAGs folder, and when its file was parsed, in seconds since 1970."""

    file: str
    number: int
    bundle_version_id: int
    parsed_at: float
    #: Whether its file could not be read the last time.
    is_broken: bool
    other_files: list[str]
    #: Whether a scheduler runs.
    is_watched: bool


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file of a bundle, with its content."""

    content: bytes
    is_executable: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a version: `digest` is the SHA-256 of its content in hexadecimal."""

    path: str
    digest: str
    is_executable: bool
    byte_count: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A version that was published. It `is_new` unless the bundle had this content before."""

    id: int
    bundle: str
    number: int
    is_new: bool
    #: The files that differ from the version that was wanted before.
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def digest_of(entries: Iterable[Entry]) -> str:
    """The digest of a version, in hexadecimal: that of a line for each file, in the order of their paths."""
    lines = sorted((entry.path, entry.digest, entry.is_executable) for entry in entries)
    return hashlib.sha256(json.dumps(lines, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def publish(
    connection: Connection,
    bundle: str,
    files: Mapping[str, BundleFile],
    *,
    by: str,
    message: str = "",
    origin: str = "",
    code_url: str | None = None,
) -> Published:
    """Store a folder as a version of a bundle, and want it: a scheduler parses it, and makes it live if it has no errors.

    Keys of `files` are paths relative to the folder, with `/`. Content that the bundle had before is that version again; one that
    was refused is parsed again. PacelineError while a process runs that would not execute the code of a version.
    """
    if bundle == DAGS_FOLDER:
        raise PacelineError(f"{DAGS_FOLDER!r} is the DAGs folder of the schedulers: name the bundle otherwise.")
    _refuse_old_processes(connection)
    contents, entries = dict[str, bytes](), dict[str, Entry]()
    for path, file in files.items():
        found = hashlib.sha256(file.content).hexdigest()
        contents[found], entries[path] = file.content, Entry(path, found, file.is_executable, len(file.content))
    # Missing contents first, so that the bundle is not locked while they are sent.
    blobs.store(connection, contents.keys(), contents.__getitem__, url=code_url)
    connection.exec_driver_sql("insert into bundle (name) values (%s) on conflict do nothing", (bundle,))
    wanted_id = connection.exec_driver_sql("select wanted_id from bundle where name = %s for update", (bundle,)).scalar_one()
    digest = digest_of(entries.values())
    known = connection.exec_driver_sql(
        """
        update bundle_version set state = case state when 'refused' then 'new' else state end, problems = null
         where bundle = %s and digest = decode(%s, 'hex') returning id, number
        """,
        (bundle, digest),
    ).first()
    before = {} if wanted_id is None else {entry.path: entry for entry in tree(EngineReader(connection), wanted_id)}
    if known is None:
        version_id, number = _insert(connection, bundle, entries, digest, "new", by=by, message=message, origin=origin)
    else:
        version_id, number = known
    connection.exec_driver_sql("update bundle set wanted_id = %s where name = %s", (version_id, bundle))
    return Published(
        version_id, bundle, number, known is None,
        added=tuple(sorted(entries.keys() - before.keys())),
        changed=tuple(sorted(path for path in entries.keys() & before.keys() if entries[path] != before[path])),
        removed=tuple(sorted(before.keys() - entries.keys())),
    )  # fmt: skip


def store_folder(
    connection: Connection,
    entries: Mapping[str, Entry],
    read: Callable[[str], bytes],
    *,
    by: str,
    code_url: str | None = None,
) -> int:
    """Store the DAGs folder as it is now, as a version of DAGS_FOLDER. Returns its ID.

    Its files are parsed one by one, so the version is ready. `read` returns the content with a digest, if it is not stored.
    """
    digest = digest_of(entries.values())
    known = "select id from bundle_version where bundle = %s and digest = decode(%s, 'hex') for key share"
    version_id: int | None = connection.exec_driver_sql(known, (DAGS_FOLDER, digest)).scalar()
    if version_id is None:
        blobs.store(connection, {entry.digest for entry in entries.values()}, read, url=code_url)
        connection.exec_driver_sql("insert into bundle (name) values (%s) on conflict do nothing", (DAGS_FOLDER,))
        connection.exec_driver_sql("select from bundle where name = %s for update", (DAGS_FOLDER,))
        version_id = connection.exec_driver_sql(known, (DAGS_FOLDER, digest)).scalar()
        if version_id is None:
            version_id, _ = _insert(connection, DAGS_FOLDER, entries, digest, "ready", by=by, message="", origin="")
    switched = connection.exec_driver_sql(
        "update bundle set version_id = %(id)s, wanted_id = %(id)s where name = %(name)s and version_id is distinct from %(id)s",
        {"id": version_id, "name": DAGS_FOLDER},
    )
    if switched.rowcount:
        connection.exec_driver_sql("update bundle_version set live_at = clock_timestamp() where id = %s", (version_id,))
    return version_id


def want(connection: Connection, bundle: str, number: int | None = None) -> tuple[int, int]:
    """Roll back to a version of a bundle, or to the one that was live before. Returns its ID and number; a scheduler makes it live.

    NotFoundError if there is no such version.
    """
    live_id = connection.exec_driver_sql("select version_id from bundle where name = %s for update", (bundle,)).first()
    if live_id is None:
        raise NotFoundError(f"There is no bundle {bundle!r}; `paceline bundles list` shows all.")
    found = connection.exec_driver_sql(
        """
        select id, number from bundle_version
         where bundle = %(bundle)s
           and (number = %(number)s or %(number)s::int is null and live_at is not null and id is distinct from %(live)s)
         order by live_at desc nulls last limit 1
        """,
        {"bundle": bundle, "number": number, "live": live_id[0]},
    ).first()
    if found is None:
        what = "no other version that was live" if number is None else f"no version {number}"
        raise NotFoundError(f"Bundle {bundle!r} has {what}; `paceline bundles versions {bundle}` shows all.")
    connection.exec_driver_sql(
        """
        with again as (update bundle_version set state = 'new', problems = null where id = %(id)s and state = 'refused')
        update bundle set wanted_id = %(id)s where name = %(bundle)s
        """,
        {"id": found.id, "bundle": bundle},
    )
    return found.id, found.number


def newest_of_folder(reader: Reader, dag_id: str) -> FolderDag | None:
    """What was parsed of a DAG of the DAGs folder; None for any other DAG."""
    found = reader.objects(
        FolderDag,
        """
        select d.file, v.number, v.bundle_version_id, extract(epoch from f.parsed_at)::float8 as parsed_at,
               exists (select from import_error e where e.file = d.file) as is_broken,
               array(select o.path from dag_file o where o.path <> d.file) as other_files,
               exists (select from process p where p.kind = 'scheduler' and p.stopped_at is null
                         and p.heartbeat_at > clock_timestamp() - interval '30 s') as is_watched
          from dag d join dag_version v on v.id = d.version_id join bundle_version b on b.id = v.bundle_version_id
          join dag_file f on f.path = d.file
         where d.dag_id = %s and b.bundle = %s
        """,
        (dag_id, DAGS_FOLDER),
    )
    return found[0] if found else None


def tree(reader: Reader, version_id: int) -> list[Entry]:
    """The files of a version, by path. It has none if the version does not exist."""
    return reader.objects(
        Entry,
        """
        select p.path, encode(p.digest, 'hex') as digest, p.is_executable, p.byte_count
          from bundle_version v
          join bundle_path p on p.bundle = v.bundle and p.first <= v.number and coalesce(p.last, v.number) >= v.number
         where v.id = %s order by p.path
        """,
        (version_id,),
    )


def identity(reader: Reader, version_id: int) -> Identity:
    """The bundle and the digest of a version. NotFoundError."""
    statement = "select bundle, encode(digest, 'hex') as digest from bundle_version where id = %s"
    found = reader.objects(Identity, statement, (version_id,))
    if not found:
        raise NotFoundError(f"The bundle version {version_id} was deleted: clear its runs with the newest version, or mark them.")
    return found[0]


def packed_file(reader: Reader, version_id: int, path: str) -> Packed | None:
    """The content of one file of a version; None if it has no such file."""
    found = reader.objects(
        Packed,
        """
        select encode(b.digest, 'hex') as digest, b.content, p.byte_count from bundle_version v
          join bundle_path p on p.bundle = v.bundle and p.first <= v.number and coalesce(p.last, v.number) >= v.number
          join bundle_blob b on b.digest = p.digest
         where v.id = %s and p.path = %s
        """,
        (version_id, path),
    )
    return found[0] if found else None


def _refuse_old_processes(connection: Connection) -> None:
    old = connection.exec_driver_sql(
        "select name, host from process where stopped_at is null and kind <> 'scheduler' and coalesce(schema, '') < %s limit 1",
        (SINCE,),
    ).first()
    if old is not None:
        raise PacelineError(
            f"The worker {old.name} on {old.host} is older than this version of Paceline, and would run other code:"
            " upgrade all workers and waiters, then deploy."
        )


def _insert(
    connection: Connection,
    bundle: str,
    entries: Mapping[str, Entry],
    digest: str,
    state: str,
    *,
    by: str,
    message: str,
    origin: str,
) -> tuple[int, int]:
    version_id, number = connection.exec_driver_sql(
        """
        insert into bundle_version (bundle, number, digest, state, file_count, byte_count, message, origin, created_by)
        select %(bundle)s, 1 + coalesce((select max(number) from bundle_version where bundle = %(bundle)s), 0),
               decode(%(digest)s, 'hex'), %(state)s, %(files)s, %(bytes)s, %(message)s, %(origin)s, %(by)s
        returning id, number
        """,
        {
            "bundle": bundle, "digest": digest, "state": state, "files": len(entries),
            "bytes": sum(entry.byte_count for entry in entries.values()), "message": message, "origin": origin, "by": by,
        },
    ).one()  # fmt: skip
    paths = sorted(entries)
    # The rows of the version before stay where their file did not change.
    connection.exec_driver_sql(
        """
        with files as materialized (
            select * from unnest(%(paths)s::text[], %(digests)s::bytea[], %(modes)s::boolean[], %(sizes)s::bigint[])
                       f (path, digest, is_executable, byte_count)
        ), closed as (
            update bundle_path p set last = %(number)s - 1
             where p.bundle = %(bundle)s and p.last is null
               and not exists (select from files f where (f.path, f.digest, f.is_executable) = (p.path, p.digest, p.is_executable))
        )
        insert into bundle_path (bundle, path, first, digest, is_executable, byte_count)
        select %(bundle)s, path, %(number)s, digest, is_executable, byte_count from files f
         where not exists (select from bundle_path p
                            where p.bundle = %(bundle)s and p.last is null
                              and (f.path, f.digest, f.is_executable) = (p.path, p.digest, p.is_executable))
        """,
        {
            "bundle": bundle, "number": number, "paths": paths, "digests": [f"\\x{entries[path].digest}" for path in paths],
            "modes": [entries[path].is_executable for path in paths], "sizes": [entries[path].byte_count for path in paths],
        },
    )  # fmt: skip
    return version_id, number


def enter_sources(connection: Connection, names: list[str]) -> None:
    """Make the bundles whose sources are in the settings, and forget the sources of the others."""
    connection.exec_driver_sql("insert into bundle (name) select * from unnest(%s::text[]) on conflict do nothing", (names,))
    connection.exec_driver_sql(
        """
        with gone as (select name from bundle where source is not null and name <> all(%s) order by name for no key update)
        update bundle b set source = null, problem = null, read_at = null, read_until = null from gone where b.name = gone.name
        """,
        (names,),
    )


def claim_source(connection: Connection, names: Collection[str], *, interval_s: float, lease_s: float) -> dict[str, dict[str, Any]]:
    """Claim those of these bundles whose source was not read for `interval_s` and is not being read now.

    Returns what `source_done` stored after the last reading of each. A claim expires after `lease_s` seconds.
    """
    rows = connection.exec_driver_sql(
        """
        with due as materialized (
            select name from bundle
             where name = any(%(names)s) and (read_until is null or read_until <= statement_timestamp())
               and (read_at is null or read_at <= statement_timestamp() - make_interval(secs => %(interval)s))
             order by name for no key update skip locked)
        update bundle b set read_until = statement_timestamp() + make_interval(secs => %(lease)s) from due where b.name = due.name
        returning b.name, b.source
        """,
        {"names": list(names), "interval": interval_s, "lease": lease_s},
    )
    return {name: source or {} for name, source in rows}


def source_done(connection: Connection, bundle: str, source: dict[str, Any], problem: str | None) -> None:
    """Store what a reading of the source found, or why it cannot be read. Ends the claim."""
    connection.exec_driver_sql(
        "update bundle set source = %s, problem = %s, read_at = statement_timestamp(), read_until = null where name = %s",
        (Json(source), problem, bundle),
    )


def source_problems(connection: Connection) -> list[tuple[str, str]]:
    """The bundles whose source cannot be read, each with the reason."""
    rows = connection.exec_driver_sql("select name, problem from bundle where problem is not null order by name")
    return [(name, problem) for name, problem in rows]
