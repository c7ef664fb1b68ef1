"""DAG files: which are due, which process parses them, and their DAGs, versions and import errors."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError

from scheduler.store.dags import bundles, current, import_errors
from scheduler.store.dags.bundles import Entry
from scheduler.store.dags.current import ParsedDag, TakenError
from scheduler.store.dags.import_errors import Problem
from scheduler.store.db import sqlstates
from scheduler.store.db.database import step, transact

#: The orders of new and changed files, which come first. Unchanged files follow in the order in which they became due.
ORDERS = {
    "modified_time": "modified_at desc, path",
    "random_seeded_by_host": "md5(path || %(host)s)",
    "alphabetical": "path",
}
#: For each file that imports modules of the listing: the newest time of these, and whether one of them is in `again`.
NEWEST_MODULES = """
    select f.path, max(m.modified_at) as modified_at, bool_or(m.path = any(%(again)s::text[])) as is_again
      from dag_file f cross join unnest(f.modules) n (path)
      join unnest(%(modules)s::text[], %(modules_modified)s::timestamptz[]) m (path, modified_at) on m.path = n.path
     group by f.path
"""
#: program_limit_exceeded: a string is longer than an index allows.
TOO_LONG = "54000"


class Folder(Protocol):
    """The files of the DAGs folder at one moment."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """By path."""

    @property
    def code_url(self) -> str | None:
        """Where contents are stored; None for the database."""

    def read(self, digest: str) -> bytes:
        """A content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFile:
    """The result of parsing a file: DAGs, or a problem and no DAGs. `modified_at` is that of the claim."""

    path: str
    modified_at: datetime
    duration_s: float
    dags: tuple[ParsedDag, ...] = ()
    #: The Python files of the folder that it imported: a change to one of them is a change to this file.
    modules: tuple[str, ...] = ()
    #: How long it is not parsed again if nothing changes and its DAGs can be stored; None is the minimum.
    rests: timedelta | None = None
    problem: Problem | None = None
    #: The DAGs folder when it was parsed, if runs are pinned to it; the hashes of `dags` cover its code.
    folder: Folder | None = None
    #: Reads the text of the file, which is kept with each new version.
    source: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A file to parse now, and its modification time."""

    path: str
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The result of storing a ParsedFile; not `accepted` if the claim was lost or the file was removed."""

    accepted: bool = True
    new_versions: tuple[str, ...] = ()
    #: DAGs whose row changed: new, switched to another version, active again, or no longer active.
    changed: tuple[str, ...] = ()
    problem: Problem | None = None


def sync(
    connection: Connection, files: Mapping[str, datetime], *, complete: bool, modules: Mapping[str, datetime] | None = None,
    again: Collection[str] = (),
) -> tuple[str, ...]:  # fmt: skip
    """Store a listing of the DAGs folder: new and changed files, and files that import a changed one, become due now.

    Files in `again` have changed although their times are the same. Files that a `complete` listing does not have are
    removed: their DAGs become inactive, keep their versions, runs and pause, and are returned.
    """
    _sync(connection, files, modules or {}, again)
    if not complete:
        return ()
    parameters = {"paths": sorted(files)}
    # Other processes list the same folder or release claims, so all lock the rows in one order.
    for table, path in (("dag_file", "path"), ("import_error", "file")):
        connection.exec_driver_sql(
            f"with gone as (select {path} from {table} where {path} <> all(%(paths)s::text[]) order by {path} for update)"
            f" delete from {table} f using gone where f.{path} = gone.{path}",
            parameters,
        )
    return current.deactivate(connection, "bundle is null and file <> all(%(paths)s::text[])", parameters)


def make_due(connection: Connection) -> None:
    """Let all files be parsed again."""
    connection.exec_driver_sql(
        """
        with held as (select path from dag_file where next_parse_at > statement_timestamp() order by path for no key update)
        update dag_file f set next_parse_at = statement_timestamp() from held where f.path = held.path
        """
    )


def claim(connection: Connection, *, claimed_by: str, lease_s: float, limit: int, sort_mode: str, host: str) -> list[Claimed]:
    """Claim up to `limit` due files that no other process parses. The claim expires after `lease_s` seconds."""
    rows = connection.exec_driver_sql(
        f"""
        with due as materialized (
            select path from dag_file
             where next_parse_at <= statement_timestamp() and (claimed_until is null or claimed_until <= statement_timestamp())
             order by coalesce(parsed_at > modified_at, false), case when parsed_at > modified_at then next_parse_at end,
                      {ORDERS[sort_mode]}
             limit %(limit)s
               for update skip locked)
        update dag_file f set claimed_by = %(claimed_by)s, claimed_until = statement_timestamp() + make_interval(secs => %(lease)s)
          from due where f.path = due.path
        returning f.path, f.modified_at
        """,
        {"claimed_by": claimed_by, "lease": lease_s, "limit": limit, "host": host},
    )
    return [Claimed(path, modified_at) for path, modified_at in rows]


def take(
    connection: Connection, files: Mapping[str, datetime], *, modules: Mapping[str, datetime], again: Collection[str],
    claimed_by: str, lease_s: float, limit: int, sort_mode: str, host: str,
) -> list[Claimed]:  # fmt: skip
    """`sync` for an incomplete listing, and `claim`, in one transaction.

    Its commit does not wait for the disk: after a connection error, the caller lists everything again.
    """
    connection.exec_driver_sql("set local synchronous_commit = off")
    _sync(connection, files, modules, again)
    return claim(connection, claimed_by=claimed_by, lease_s=lease_s, limit=limit, sort_mode=sort_mode, host=host)


def _sync(connection: Connection, files: Mapping[str, datetime], modules: Mapping[str, datetime], again: Collection[str]) -> None:
    """Make changed files due. A file has changed if it or a module that it imports has changed."""
    paths, names = sorted(files), sorted(modules)
    parameters = {
        "paths": paths,
        "modified": [files[path] for path in paths],
        "modules": names,
        "modules_modified": [modules[name] for name in names],
        "again": sorted(again),
    }
    if paths:
        connection.exec_driver_sql(
            f"""
            with newest as materialized ({NEWEST_MODULES})
            insert into dag_file as f (path, modified_at, next_parse_at)
            select t.path, greatest(t.modified_at, n.modified_at), statement_timestamp()
              from unnest(%(paths)s::text[], %(modified)s::timestamptz[]) t (path, modified_at)
              left join newest n on n.path = t.path
             order by t.path
            on conflict (path) do update set modified_at = excluded.modified_at, next_parse_at = excluded.next_parse_at
             where f.modified_at <> excluded.modified_at or f.path = any(%(again)s::text[])
            """,
            parameters,
        )
    if names:
        connection.exec_driver_sql(
            f"""
            with newest as materialized ({NEWEST_MODULES}), held as materialized (
                select f.path, n.modified_at from dag_file f join newest n on n.path = f.path
                 where n.modified_at > f.modified_at or n.is_again
                 order by f.path for no key update of f
            )
            update dag_file f set modified_at = greatest(f.modified_at, held.modified_at), next_parse_at = statement_timestamp()
              from held where f.path = held.path
            """,
            parameters,
        )


def release(connection: Connection, *, claimed_by: str) -> None:
    """Release all claims of a process that stops; its files stay due."""
    connection.exec_driver_sql(
        "with held as (select path from dag_file where claimed_by = %(claimed_by)s order by path for no key update)"
        " update dag_file f set claimed_by = null, claimed_until = null from held where f.path = held.path",
        {"claimed_by": claimed_by},
    )


def release_dead(connection: Connection, readers: Collection[str]) -> None:
    """Release the claims of lost processes, except for files that are being stored now."""
    connection.exec_driver_sql(
        """
        with held as (select path from dag_file where claimed_by = any(%s) order by path for no key update skip locked)
        update dag_file f set claimed_by = null, claimed_until = null from held where f.path = held.path
        """,
        (list(readers),),
    )


def record(engine: Engine, parsed: ParsedFile, *, claimed_by: str, min_interval: timedelta) -> Recorded:
    """Store the contents of a parsed file in one transaction. If that is rolled back, another one stores an import error.

    A dag_version is created only for content that this DAG has never had. An import error keeps the earlier versions active.
    """
    arguments: dict[str, Any] = {"claimed_by": claimed_by, "min_interval": min_interval}
    try:
        return transact(engine, _record, parsed, **arguments)
    except TakenError as taken:
        problem = Problem.make(str(taken))
    except DBAPIError as error:
        if not isinstance(error, DataError) and getattr(error.orig, "pgcode", None) != TOO_LONG:
            raise
        problem = Problem.make(f"PostgreSQL cannot store a DAG of this file: {sqlstates.first_line(error)}.")
    failed = ParsedFile(path=parsed.path, modified_at=parsed.modified_at, duration_s=parsed.duration_s, problem=problem)
    return transact(engine, _record, failed, **arguments)


@step("parse", lambda recorded: recorded.accepted)
def _record(connection: Connection, parsed: ParsedFile, *, claimed_by: str, min_interval: timedelta) -> Recorded:
    # A file that changed while it was parsed is due at once. No row is updated if the claim was lost or the file was removed.
    mine = connection.exec_driver_sql(
        """
        update dag_file set claimed_by = null, claimed_until = null, parsed_at = statement_timestamp(), duration_s = %(duration_s)s,
               next_parse_at = statement_timestamp() + case when modified_at = %(modified_at)s then %(rests)s else interval '0' end,
               dag_count = coalesce(%(dag_count)s, dag_count), modules = coalesce(%(modules)s::text[], modules)
         where path = %(path)s and claimed_by = %(claimed_by)s
        """,
        {
            "path": parsed.path,
            "claimed_by": claimed_by,
            "rests": (None if parsed.problem else parsed.rests) or min_interval,
            "modified_at": parsed.modified_at,
            "duration_s": parsed.duration_s,
            "dag_count": None if parsed.problem else len(parsed.dags),
            "modules": None if parsed.problem else list(parsed.modules),
        },
    )
    if mine.rowcount == 0:
        return Recorded(accepted=False)
    if parsed.problem:
        import_errors.put(connection, parsed.path, parsed.problem)
        return Recorded(problem=parsed.problem)
    stored, had_error = _stored(connection, parsed.path)
    if had_error:
        connection.exec_driver_sql("delete from import_error where file = %(path)s", {"path": parsed.path})
    # In the order in which the rows are locked for every file.
    changed = sorted((dag for dag in parsed.dags if stored.get(dag.dag_id) != dag.content_hash), key=lambda dag: dag.dag_id)
    bundle_version_id = None
    if changed and parsed.folder is not None:
        folder = parsed.folder
        bundle_version_id = bundles.store_folder(connection, folder.entries, folder.read, by=claimed_by, code_url=folder.code_url)
    versions = current.add_versions(connection, changed, bundle_version_id) if changed else ()
    text = parsed.source() if versions and bundle_version_id is None else None
    if text is not None:
        _keep_source(connection, versions, text)
    if changed:
        ids_of = current.version_ids(connection, {dag.dag_id: dag for dag in changed}, parsed.path)
        current.switch(connection, {dag.dag_id: current.Version(ids_of[dag.dag_id], parsed.path, dag.is_paused) for dag in changed})
    ids = [dag.dag_id for dag in parsed.dags]
    vanished: tuple[str, ...] = ()
    if stored.keys() - set(ids):
        others = "bundle is null and file = %(path)s and dag_id <> all(%(ids)s::text[])"
        vanished = current.deactivate(connection, others, {"path": parsed.path, "ids": ids})
    return Recorded(new_versions=versions, changed=(*(dag.dag_id for dag in changed), *vanished))


def _stored(connection: Connection, path: str) -> tuple[dict[str, str], bool]:
    """The active DAGs of a file with the hashes of their content, and whether the file has an import error.

    No other process changes these while this transaction has the row of the file locked.
    """
    rows = connection.exec_driver_sql(
        """
        select d.dag_id, v.content_hash from dag d join dag_version v on v.id = d.version_id
         where d.file = %(path)s and d.bundle is null and d.is_active
        union all
        select null, null from import_error where file = %(path)s
        """,
        {"path": path},
    ).all()
    return {dag_id: content_hash for dag_id, content_hash in rows if dag_id is not None}, any(dag_id is None for dag_id, _ in rows)


def _keep_source(connection: Connection, dag_ids: Sequence[str], text: str) -> None:
    """Store the text of a file with the newest version of its DAGs. The update locks a source that is there already."""
    connection.exec_driver_sql(
        """
        with source as (
            insert into dag_source as s (digest, content) values (sha256(convert_to(%(text)s, 'UTF8')), %(text)s)
            on conflict (digest) do update set content = s.content returning digest
        )
        update dag_version v set source = source.digest from source
         where v.dag_id = any(%(ids)s) and v.number = (select max(n.number) from dag_version n where n.dag_id = v.dag_id)
        """,
        {"text": text, "ids": list(dag_ids)},
    )


def not_parsed_since(connection: Connection, modified: Mapping[str, float]) -> int:
    """How many files were not parsed since their modification (seconds since 1970). A time in the future does not count."""
    count: int = connection.exec_driver_sql(
        """
        select count(*) from unnest(%s::text[], %s::float[]) w (path, modified)
         where not exists (select from dag_file f where f.path = w.path
                              and (f.parsed_at >= to_timestamp(w.modified) or to_timestamp(w.modified) > statement_timestamp()
                                   and f.parsed_at is not null))
        """,
        (list(modified), list(modified.values())),
    ).scalar_one()
    return count
