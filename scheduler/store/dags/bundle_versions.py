"""The wanted version of each bundle: a scheduler claims it, parses its files, and makes all of its DAGs live in one transaction."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from scheduler.store.dags import bundles, current
from scheduler.store.dags.current import ParsedDag, TakenError
from scheduler.store.dags.import_errors import Problem
from scheduler.store.db.rows import EngineReader

#: A wanted version is due until it is live or refused.
DUE = """
    bundle b join bundle_version v on v.id = b.wanted_id
 where b.version_id is distinct from b.wanted_id and v.state <> 'refused'
"""


@dataclass(frozen=True, slots=True)
class ClaimedVersion:
    """A wanted version to parse, or one that `is_parsed` and only has to be made live."""

    id: int
    bundle: str
    number: int
    is_parsed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBundleFile:
    """A DAG file of a bundle version after parsing: its DAGs, or its problem."""

    path: str
    dags: tuple[ParsedDag, ...] = ()
    #: The files of the bundle that it imported, which may be DAG files themselves.
    modules: tuple[str, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """What making a version live did. It `is_live` unless it was refused, or is not wanted any more."""

    is_live: bool
    #: DAGs whose row changed: new, switched to another version, active again, or no longer active.
    changed: tuple[str, ...] = ()
    problems: tuple[tuple[str, Problem], ...] = ()


def exist(connection: Connection) -> bool:
    """Whether there is any bundle."""
    return bool(connection.exec_driver_sql("select exists (select from bundle)").scalar())


def claim(connection: Connection, *, claimed_by: str, lease_s: float) -> ClaimedVersion | None:
    """Claim a due version that no other scheduler has. The claim expires after `lease_s` seconds."""
    row = connection.exec_driver_sql(
        f"""
        with due as materialized (
            select v.id from {DUE} and (v.claimed_until is null or v.claimed_until <= statement_timestamp())
             order by v.created_at, v.id limit 1 for no key update of v skip locked)
        update bundle_version v
           set claimed_by = %(claimed_by)s, claimed_until = statement_timestamp() + make_interval(secs => %(lease)s)
          from due where v.id = due.id
        returning v.id, v.bundle, v.number, v.state = 'ready' as is_parsed
        """,
        {"claimed_by": claimed_by, "lease": lease_s},
    ).first()
    return None if row is None else ClaimedVersion(*row)


def renew(connection: Connection, version_id: int, *, claimed_by: str, lease_s: float) -> bool:
    """Extend a claim; False if it has expired and another scheduler has the version."""
    renewed = connection.exec_driver_sql(
        "update bundle_version set claimed_until = statement_timestamp() + make_interval(secs => %s)"
        " where id = %s and claimed_by = %s",
        (lease_s, version_id, claimed_by),
    )
    return renewed.rowcount == 1


def release(connection: Connection, *, claimed_by: str) -> None:
    """Release the claims of a process that stops or was lost."""
    connection.exec_driver_sql(
        "update bundle_version set claimed_by = null, claimed_until = null where claimed_by = %s", (claimed_by,)
    )


def record(connection: Connection, version_id: int, files: Sequence[ParsedBundleFile], *, claimed_by: str) -> Live:
    """Store the parsed files of a claimed version. With a problem it is refused; otherwise it goes live if it is still wanted."""
    _lock_bundle(connection, version_id)
    row = connection.exec_driver_sql(
        "select bundle, claimed_by = %s as is_ours, state from bundle_version where id = %s for no key update",
        (claimed_by, version_id),
    ).first()
    if row is None or not row.is_ours or row.state != "new":
        return Live(is_live=False)
    problems = [(file.path, file.problem) for file in files if file.problem is not None] or _twice(files)
    if problems:
        return refuse(connection, version_id, problems, files)
    entries = bundles.tree(EngineReader(connection), version_id)
    own = {file.path for file in files if file.dags}
    dags = [current.with_code(dag, entries, others=own - {file.path, *file.modules}) for file in files for dag in file.dags]
    current.add_versions(connection, sorted(dags, key=lambda dag: dag.dag_id), version_id)
    try:
        found = current.version_ids(connection, {dag.dag_id: dag for dag in dags}, f"bundle {row.bundle}")
    except TakenError as taken:
        return refuse(connection, version_id, [("", Problem.make(str(taken)))], files)
    connection.exec_driver_sql(
        "update bundle_version set state = 'ready', problems = null, dags = %s::jsonb where id = %s",
        (json.dumps({dag.dag_id: {"version": found[dag.dag_id], "paused": dag.is_paused} for dag in dags}), version_id),
    )
    return go_live(connection, version_id)


def go_live(connection: Connection, version_id: int) -> Live:
    """Make a parsed version the live one: its DAGs switch to their versions, and the other DAGs of its bundle become inactive.

    It stays as it is if it is not wanted any more. It is refused if a file or another bundle has one of its DAG IDs.
    """
    bundle, wanted_id = _lock_bundle(connection, version_id)
    if wanted_id != version_id:
        return Live(is_live=False)
    rows = connection.exec_driver_sql(
        """
        select e.key as dag_id, v.data->>'file' as file, v.id, (e.value->>'paused')::boolean as is_paused,
               d.dag_id is not null as is_same
          from bundle_version b cross join jsonb_each(b.dags) e join dag_version v on v.id = (e.value->>'version')::bigint
          left join dag d on d.dag_id = e.key and d.is_active and d.bundle = b.bundle and d.version_id = v.id
         where b.id = %s
        """,
        (version_id,),
    ).all()
    changed = {row.dag_id: current.Version(row.id, row.file, row.is_paused) for row in rows if not row.is_same}
    connection.exec_driver_sql("savepoint go_live")
    try:
        # First those that go: a DAG may move from one file of the bundle to another, and from this bundle to another.
        gone = current.deactivate(
            connection,
            "bundle = %(bundle)s and dag_id <> all(%(ids)s::text[])",
            {"bundle": bundle, "ids": [row.dag_id for row in rows]},
        )
        current.switch(connection, changed, bundle)
    except TakenError as taken:
        connection.exec_driver_sql("rollback to savepoint go_live")
        file = next((row.file for row in rows if f"DAG {row.dag_id!r}" in str(taken)), "")
        return refuse(connection, version_id, [(file, Problem.make(str(taken)))])
    connection.exec_driver_sql("update bundle set version_id = %s where name = %s", (version_id, bundle))
    connection.exec_driver_sql(
        "update bundle_version set live_at = clock_timestamp(), claimed_by = null, claimed_until = null where id = %s",
        (version_id,),
    )
    return Live(is_live=True, changed=(*changed, *gone))


def parse_again(connection: Connection, dag_id: str) -> None:
    """Parse the bundle versions with a DAG again, a live one at once, because the versions of the DAG are deleted."""
    connection.exec_driver_sql(
        """
        with again as (update bundle_version set state = 'new', dags = null where state = 'ready' and dags ? %(dag)s returning id)
        update bundle b set version_id = null from again where b.version_id = again.id
        """,
        {"dag": dag_id},
    )


def refuse(
    connection: Connection,
    version_id: int,
    problems: Sequence[tuple[str, Problem]],
    files: Sequence[ParsedBundleFile] | None = None,
) -> Live:
    """Store why a version cannot go live, by file, and the DAGs of its other `files`, for its plan. The live version stays."""
    stored: list[dict[str, Any]] = [{"file": file} | problem.model_dump() for file, problem in problems]
    dags = [
        f'{json.dumps(dag.dag_id)}: {{"data": {dag.data}, "tasks": {dag.tasks or "{}"}}}' for one in files or () for dag in one.dags
    ]
    connection.exec_driver_sql(
        """
        update bundle_version
           set state = 'refused', problems = %s::jsonb, dags = coalesce(%s::jsonb, dags), claimed_by = null, claimed_until = null
         where id = %s
        """,
        (json.dumps(stored), None if files is None else f"{{{', '.join(dags)}}}", version_id),
    )
    return Live(is_live=False, problems=tuple(problems))


def _lock_bundle(connection: Connection, version_id: int) -> tuple[str, int | None]:
    """Lock the bundle of a version, before its versions as `publish` does. Returns its name, and the version that it wants."""
    row = connection.exec_driver_sql(
        "select name, wanted_id from bundle where name = (select bundle from bundle_version where id = %s) for update",
        (version_id,),
    ).first()
    return ("", None) if row is None else (row.name, row.wanted_id)


def _twice(files: Sequence[ParsedBundleFile]) -> list[tuple[str, Problem]]:
    """The files with a DAG ID that an earlier file has."""
    seen: dict[str, str] = {}
    problems = []
    for file in sorted(files, key=lambda file: file.path):
        for dag in file.dags:
            first = seen.setdefault(dag.dag_id, file.path)
            if first != file.path:
                problems.append((file.path, Problem.make(f"DAG {dag.dag_id!r} is also in {first}: rename one of them.")))
    return problems


@dataclass(frozen=True, slots=True)
class Refused:
    """A wanted version that was refused, with its first problem."""

    bundle: str
    number: int
    file: str
    line: int | None
    message: str


def refused(connection: Connection) -> list[Refused]:
    """The bundles whose wanted version was refused."""
    return EngineReader(connection).objects(
        Refused,
        """
        select b.name as bundle, v.number, v.problems->0->>'file' as file, (v.problems->0->>'line')::int as line,
               v.problems->0->>'message' as message
          from bundle b join bundle_version v on v.id = b.wanted_id
         where v.state = 'refused' order by b.name
        """,
        (),
    )
