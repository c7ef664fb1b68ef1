"""What is shown of bundles: the live version of each, their versions with the runs of each, and what differs between two."""

from sqlalchemy import Connection

from scheduler.store.dags.bundles import DAGS_FOLDER
from scheduler.store.read.listing import Listing, Page, Row

#: Of a DAG version `v`: its bundle and the version of that, which is NULL for the DAGs folder as it stands.
NAME_OF = f"coalesce((select b.bundle from bundle_version b where b.id = v.bundle_version_id), '{DAGS_FOLDER}')"
VERSION_OF = "(select b.number::text from bundle_version b where b.id = v.bundle_version_id)"
BUNDLE_OF = f"{NAME_OF} as bundle_name, {VERSION_OF} as bundle_version"
BUNDLES = Listing(
    columns=f"""
        b.name as bundle_name, l.number as live_version, w.number as wanted_version, w.state as wanted_state, l.live_at,
        l.message, l.origin, l.created_by, b.source, b.problem,
        (select count(*) from bundle_version v where v.bundle = b.name) as version_count,
        (select count(*) from dag d where coalesce(d.bundle, '{DAGS_FOLDER}') = b.name and d.is_active) as dag_count
    """,
    tables="bundle b left join bundle_version l on l.id = b.version_id left join bundle_version w on w.id = b.wanted_id",
    orders={"bundle_name": "b.name", "live_at": "l.live_at"},
    default_order=("bundle_name",),
    key="b.name",
)
#: The DAGs of a version `v` of the DAGs folder, whose files are parsed one by one: those whose file is in it, each with the newest
#: DAG version that was stored by then.
OF_FOLDER = """
    select d.dag_id, max(s.id) as version_id
      from dag_version s join bundle_version b on b.id = s.bundle_version_id and b.bundle = v.bundle and b.number <= v.number
      join dag d on d.dag_id = s.dag_id
      join bundle_path p on p.bundle = v.bundle and p.path = d.file and v.number between p.first and coalesce(p.last, v.number)
     group by d.dag_id
"""
#: Runs count for the first version with the code that they execute: a change of one DAG file changes no other DAG.
VERSIONS = Listing(
    columns=f"""
        v.id, v.bundle as bundle_name, v.number as version_number, encode(v.digest, 'hex') as digest, v.state,
        b.version_id is not distinct from v.id as is_live, b.wanted_id is not distinct from v.id as is_wanted,
        v.file_count, v.byte_count, v.message, v.origin, v.created_by, v.created_at, v.live_at, v.problems,
        case when v.bundle = '{DAGS_FOLDER}' then array(select f.dag_id from ({OF_FOLDER}) f order by 1)
             when v.state = 'ready' then array(select jsonb_object_keys(v.dags) order by 1) else '{{}}' end as dag_ids,
        (select count(*) from dag_version d join dag_run r on r.version_id = d.id where d.bundle_version_id = v.id) as run_count
    """,
    tables="bundle_version v join bundle b on b.name = v.bundle",
    orders={"version_number": "v.number", "created_at": "v.created_at", "live_at": "v.live_at", "state": "v.state"},
    filtered={"bundle_name": "v.bundle"},
    default_order=("-version_number",),
    key="v.id",
)
FILES = Listing(
    columns="p.path, encode(p.digest, 'hex') as digest, p.byte_count, p.is_executable",
    tables="""
        bundle_version v
        join bundle_path p on p.bundle = v.bundle and p.first <= v.number and coalesce(p.last, v.number) >= v.number
    """,
    orders={"path": "p.path", "byte_count": "p.byte_count"},
    filtered={"version_id": "v.id"},
    default_order=("path",),
    key="p.path",
)
#: Rows of a list that is not read page by page.
MOST = 1_000_000
#: Versions of a bundle that a page offers to compare.
MOST_NUMBERS = 200
KINDS, PARTS = ("added", "changed", "removed"), ("files", "dags")
#: The content of a version: its files and its DAGs, each with what identifies it.
CONTENT = f"""
    select 'files' as what, p.path as name, encode(p.digest, 'hex') || p.is_executable as is_now
      from {FILES.tables} where v.id = %(version)s
    union all
    select 'dags', e.key, e.value->>'version' from bundle_version v cross join jsonb_each(v.dags) e
     where v.id = %(version)s and v.state = 'ready'
    union all
    select 'dags', f.dag_id, f.version_id::text from bundle_version v cross join lateral ({OF_FOLDER}) f
     where v.id = %(version)s and v.bundle = '{DAGS_FOLDER}'
"""
CHANGES = f"""
    with o as ({CONTENT.replace("version)", "old)")}), n as ({CONTENT.replace("version)", "new)")})
    select what, name, case when o is null then 'added' when n is null then 'removed' else 'changed' end as how
      from o full join n using (what, name) where o.is_now is distinct from n.is_now order by name
"""


def bundle(connection: Connection, name: str) -> Row:
    """One bundle. NotFoundError."""
    missing = f"There is no bundle {name!r}; `paceline bundles list` shows all."
    return BUNDLES.one(connection, BUNDLES.filters().equals("bundle_name", name), missing)


def all_bundles(connection: Connection) -> list[Row]:
    """All bundles, by name."""
    return BUNDLES.page(connection, BUNDLES.filters(), Page(limit=MOST)).rows


def versions(connection: Connection, name: str, limit: int) -> list[Row]:
    """The newest versions of a bundle, newest first. NotFoundError."""
    bundle(connection, name)
    return VERSIONS.page(connection, VERSIONS.filters().equals("bundle_name", name), Page(limit=limit)).rows


def numbers(connection: Connection, name: str) -> list[Row]:
    """The newest versions of a bundle, newest first: their numbers, states and messages."""
    rows = connection.exec_driver_sql(
        "select number as version_number, state, message from bundle_version where bundle = %s order by number desc limit %s",
        (name, MOST_NUMBERS),
    )
    return [dict(row) for row in rows.mappings()]


def files(connection: Connection, name: str, number: int) -> list[Row]:
    """The files of a version, by path. NotFoundError."""
    found = version(connection, name, number)
    return FILES.page(connection, FILES.filters().equals("version_id", found["id"]), Page(limit=MOST)).rows


def version(connection: Connection, name: str, number: int) -> Row:
    """One version of a bundle. NotFoundError."""
    bundle(connection, name)
    missing = f"Bundle {name!r} has no version {number}; `paceline bundles versions {name}` shows all."
    return VERSIONS.one(connection, VERSIONS.filters().equals("bundle_name", name).equals("version_number", number), missing)


def changes(connection: Connection, version_id: int, since_id: int | None) -> dict[str, dict[str, list[str]]]:
    """The `files` and `dags` that are added, changed and removed from one version to another; all are added since None.

    A version that no scheduler has parsed yet has no DAGs.
    """
    parameters = {"new": version_id, "old": since_id}
    found = connection.exec_driver_sql(CHANGES, parameters).all()
    return {what: {kind: [name for of, name, how in found if (of, how) == (what, kind)] for kind in KINDS} for what in PARTS}
