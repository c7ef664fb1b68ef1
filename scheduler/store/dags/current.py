"""The current version of each DAG: a parsed file of the DAGs folder, or a bundle version that goes live, switches it.

A DAG belongs to the file, or to the bundle, that had its ID first, for as long as that defines it.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from scheduler.store.dags import bundles


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDag:
    """One DAG of a file as canonical JSON with its hash. A new DAG starts paused if `is_paused`.

    `tasks` are the details of its tasks as JSON, see task_details.
    """

    dag_id: str
    content_hash: str
    data: str
    is_paused: bool = False
    tasks: str | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """The version to which a DAG switches, and its file. A new DAG starts paused if `is_paused`."""

    id: int
    file: str
    is_paused: bool


class TakenError(Exception):
    """DAG IDs belong to other files or bundles."""


def add_versions(connection: Connection, dags: Sequence[ParsedDag], bundle_version_id: int | None = None) -> tuple[str, ...]:
    """Store the content that a DAG has never had, each as a new version of it. Returns the IDs of these DAGs."""
    rows = connection.exec_driver_sql(
        """
        insert into dag_version (dag_id, number, content_hash, data, tasks, bundle_version_id)
        select p.dag_id,
               1 + coalesce((select max(number) from dag_version v where v.dag_id = p.dag_id), 0), p.content_hash, p.data::jsonb,
               p.tasks::jsonb, %(bundle_version)s
          from unnest(%(ids)s::text[], %(hashes)s::text[], %(data)s::text[], %(tasks)s::text[])
               p (dag_id, content_hash, data, tasks)
         where not exists (select from dag_version v where v.dag_id = p.dag_id and v.content_hash = p.content_hash)
         order by p.dag_id
        on conflict do nothing
        returning dag_id
        """,
        {
            "ids": [dag.dag_id for dag in dags],
            "hashes": [dag.content_hash for dag in dags],
            "data": [dag.data for dag in dags],
            "tasks": [dag.tasks for dag in dags],
            "bundle_version": bundle_version_id,
        },
    )
    return tuple(rows.scalars())


def version_ids(connection: Connection, dags: Mapping[str, ParsedDag], where: str) -> dict[str, int]:
    """The versions with the content of each DAG, by DAG ID. TakenError if another process stores a new ID too."""
    rows = connection.exec_driver_sql(
        "select v.dag_id, v.id from unnest(%s::text[], %s::text[]) p (dag_id, content_hash)"
        " join dag_version v on v.dag_id = p.dag_id and v.content_hash = p.content_hash",
        (list(dags), [dag.content_hash for dag in dags.values()]),
    )
    found = {row.dag_id: row.id for row in rows}
    if len(found) < len(dags):
        raise TakenError(_taken_sentence(connection, where, sorted(dags.keys() - found.keys())))
    return found


def switch(connection: Connection, versions: Mapping[str, Version], bundle: str | None = None) -> None:
    """Set the current versions of DAGs of a file, or of a bundle. TakenError if another file or bundle has one of the IDs."""
    ids = sorted(versions)
    parameters = {
        "ids": ids,
        "files": [versions[dag_id].file for dag_id in ids],
        "versions": [versions[dag_id].id for dag_id in ids],
        "paused": [versions[dag_id].is_paused for dag_id in ids],
        "bundle": bundle,
    }
    # A DAG stays active while its file is there, see `sync` in files.py. If two files have the same new ID at the same time, the
    # second one waits here for the first, and then finds the ID taken.
    switched = connection.exec_driver_sql(
        """
        insert into dag as d (dag_id, file, version_id, bundle, parsed_at)
        select p.dag_id, p.file, p.version_id, %(bundle)s, clock_timestamp()
          from unnest(%(ids)s::text[], %(files)s::text[], %(versions)s::bigint[]) p (dag_id, file, version_id)
         order by p.dag_id
        on conflict (dag_id) do update
           set file = excluded.file, is_active = true, version_id = excluded.version_id, bundle = excluded.bundle,
               parsed_at = excluded.parsed_at
         where not d.is_active or d.bundle = excluded.bundle
            or (d.bundle is null and excluded.bundle is null and d.file = excluded.file)
        returning dag_id
        """,
        parameters,
    )
    taken = set(ids) - set(switched.scalars())
    if taken:
        raise TakenError(_taken_sentence(connection, place(bundle, versions[min(taken)].file), sorted(taken)))
    connection.exec_driver_sql(
        """
        insert into dag_schedule (dag_id, is_paused)
        select * from unnest(%(ids)s::text[], %(paused)s::boolean[]) on conflict do nothing
        """,
        parameters,
    )


def deactivate(connection: Connection, which: str, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Deactivate the active DAGs that fulfill the condition `which`, and return their IDs."""
    gone = connection.exec_driver_sql(
        f"with gone as (select dag_id from dag where is_active and {which} order by dag_id for no key update)"
        " update dag d set is_active = false from gone where d.dag_id = gone.dag_id returning d.dag_id",
        parameters,
    )
    return tuple(gone.scalars())


def _taken_sentence(connection: Connection, where: str, taken: list[str]) -> str:
    row = connection.exec_driver_sql("select bundle, file from dag where dag_id = %(id)s", {"id": taken[0]}).first()
    owner = "a file that is being stored" if row is None else place(row.bundle, row.file)
    others = f" (and {len(taken) - 1} more IDs)" if len(taken) > 1 else ""
    return f"DAG {taken[0]!r}{others} is in {owner} and in {where}; {owner} keeps it: rename one of them or remove a file."


def with_code(dag: ParsedDag, entries: Iterable[bundles.Entry], *, others: Collection[str]) -> ParsedDag:
    """The DAG with the hash of its content and code.

    Its code is all files of its bundle but the `others`, the DAG files that it does not import.
    """
    code = bundles.digest_of(entry for entry in entries if entry.path not in others)
    return replace(dag, content_hash=hashlib.sha256(f"{dag.content_hash} {code}".encode()).hexdigest())


def place(bundle: str | None, file: str) -> str:
    """A file, in sentences."""
    return file if bundle is None else f"{file} of bundle {bundle}"
