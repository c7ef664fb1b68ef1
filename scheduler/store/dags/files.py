"""DAG files: which are due, which process parses them, and their DAGs, versions and import errors."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError

from scheduler.store.dags import import_errors
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDag:
    """One DAG of a file as canonical JSON with its hash. A new DAG starts paused if `is_paused`."""

    dag_id: str
    content_hash: str
    data: str
    is_paused: bool = False


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


class _TakenError(Exception):
    """DAG IDs of this file belong to other files."""


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
    return _deactivate(connection, "file <> all(%(paths)s::text[])", parameters)


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
    except _TakenError as taken:
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
    versions = _add_versions(connection, changed) if changed else ()
    text = parsed.source() if versions else None
    if text is not None:
        _keep_source(connection, versions, text)
    if changed:
        _switch(connection, parsed.path, changed)
    ids = [dag.dag_id for dag in parsed.dags]
    vanished: tuple[str, ...] = ()
    if stored.keys() - set(ids):
        others = "file = %(path)s and dag_id <> all(%(ids)s::text[])"
        vanished = _deactivate(connection, others, {"path": parsed.path, "ids": ids})
    return Recorded(new_versions=versions, changed=(*(dag.dag_id for dag in changed), *vanished))


def _stored(connection: Connection, path: str) -> tuple[dict[str, str], bool]:
    """The active DAGs of a file with the hashes of their content, and whether the file has an import error.

    No other process changes these while this transaction has the row of the file locked.
    """
    rows = connection.exec_driver_sql(
        """
        select d.dag_id, v.content_hash from dag d join dag_version v on v.id = d.version_id
         where d.file = %(path)s and d.is_active
        union all
        select null, null from import_error where file = %(path)s
        """,
        {"path": path},
    ).all()
    return {dag_id: content_hash for dag_id, content_hash in rows if dag_id is not None}, any(dag_id is None for dag_id, _ in rows)


def _add_versions(connection: Connection, dags: Sequence[ParsedDag]) -> tuple[str, ...]:
    rows = connection.exec_driver_sql(
        """
        insert into dag_version (dag_id, number, content_hash, data)
        select p.dag_id,
               1 + coalesce((select max(number) from dag_version v where v.dag_id = p.dag_id), 0), p.content_hash, p.data::jsonb
          from unnest(%(ids)s::text[], %(hashes)s::text[], %(data)s::text[]) p (dag_id, content_hash, data)
         where not exists (select from dag_version v where v.dag_id = p.dag_id and v.content_hash = p.content_hash)
         order by p.dag_id
        on conflict do nothing
        returning dag_id
        """,
        {
            "ids": [dag.dag_id for dag in dags],
            "hashes": [dag.content_hash for dag in dags],
            "data": [dag.data for dag in dags],
        },
    )
    return tuple(rows.scalars())


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


def _switch(connection: Connection, path: str, dags: Sequence[ParsedDag]) -> None:
    """Set the current version of each DAG; _TakenError if another existing file has one of the IDs."""
    ids = [dag.dag_id for dag in dags]
    parameters = {
        "path": path,
        "ids": ids,
        "hashes": [dag.content_hash for dag in dags],
        "paused": [dag.is_paused for dag in dags],
    }
    # A DAG stays active while its file is in the folder, see sync. If two files have the same new ID at the same time, the
    # second one waits here for the first, and then finds the ID taken.
    switched = connection.exec_driver_sql(
        """
        insert into dag as d (dag_id, file, version_id, parsed_at)
        select p.dag_id, %(path)s, v.id, clock_timestamp()
          from unnest(%(ids)s::text[], %(hashes)s::text[]) p (dag_id, content_hash)
          join dag_version v on v.dag_id = p.dag_id and v.content_hash = p.content_hash
         order by p.dag_id
        on conflict (dag_id) do update
           set file = excluded.file, is_active = true, version_id = excluded.version_id, parsed_at = excluded.parsed_at
         where d.file = excluded.file or not d.is_active
        returning dag_id
        """,
        parameters,
    )
    taken = set(ids) - set(switched.scalars())
    if taken:
        raise _TakenError(_taken_sentence(connection, path, sorted(taken)))
    connection.exec_driver_sql(
        """
        insert into dag_schedule (dag_id, is_paused)
        select * from unnest(%(ids)s::text[], %(paused)s::boolean[]) on conflict do nothing
        """,
        parameters,
    )


def _taken_sentence(connection: Connection, path: str, taken: list[str]) -> str:
    owner = connection.exec_driver_sql("select file from dag where dag_id = %(id)s", {"id": taken[0]}).scalar()
    others = f" (and {len(taken) - 1} more IDs)" if len(taken) > 1 else ""
    return f"DAG {taken[0]!r}{others} is in {owner} and in {path}; {owner} keeps it: rename one of them or remove a file."


def _deactivate(connection: Connection, which: str, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Deactivate the active DAGs that fulfill the condition `which`, and return their IDs."""
    gone = connection.exec_driver_sql(
        f"with gone as (select dag_id from dag where is_active and {which} order by dag_id for no key update)"
        " update dag d set is_active = false from gone where d.dag_id = gone.dag_id returning d.dag_id",
        parameters,
    )
    return tuple(gone.scalars())


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
