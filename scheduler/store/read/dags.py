"""Lists of DAGs, their versions and tags, as the REST API shows them."""

from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import Connection

from paceline.authoring import timetable
from paceline.exceptions import NotFoundError, PacelineError, UnreadableVersionError
from scheduler.serialized.dag import params_in_order
from scheduler.serialized.tasks import complete
from scheduler.store.read.bundles import BUNDLE_OF, NAME_OF, VERSION_OF
from scheduler.store.read.listing import Entries, Filters, Listing, Page, Row

#: The newest run, for filters and orders only.
NEWEST = "(select {} from dag_run n where n.dag_id = d.dag_id order by n.id desc limit 1)"
HAS_IMPORT_ERRORS = "exists (select from import_error e where e.file = d.file and d.bundle is null)"
#: `data - 'tasks'` is one read of the stored version, whatever is picked from it.
DAGS = Listing(
    columns=f"""
        d.dag_id, d.file, d.is_active, d.parsed_at, coalesce(s.is_paused, false) as is_paused, v.id as version_id,
        v.number as version_number, v.created_at as version_created_at, v.max_active_runs, v.max_active_tasks,
        v.data - 'tasks' as spec, s.next_logical_date, s.next_interval_start, s.next_interval_end, s.next_run_after,
        f.duration_s as parse_duration_s, f.parsed_at as file_parsed_at, {BUNDLE_OF},
        {HAS_IMPORT_ERRORS} as has_import_errors
    """,
    tables="""
        dag d join dag_version v on v.id = d.version_id
        left join dag_schedule s on s.dag_id = d.dag_id
        left join dag_file f on f.path = d.file and d.bundle is null
    """,
    orders={
        "dag_id": "d.dag_id", "dag_display_name": "d.dag_id", "is_paused": "coalesce(s.is_paused, false)",
        "next_dagrun": "s.next_run_after", "next_dagrun_run_after": "s.next_run_after", "state": NEWEST.format("n.state"),
        "last_run_state": NEWEST.format("n.state"), "start_date": NEWEST.format("n.started_at"),
        "last_run_start_date": NEWEST.format("n.started_at"),
    },
    filtered={
        "is_active": "d.is_active", "has_import_errors": HAS_IMPORT_ERRORS,
        "has_asset_schedule": "(v.asset_uris is not null)", "asset_uris": "v.asset_uris::text",
        "timetable": "v.data->'schedule'->>'kind'", "bundle_name": NAME_OF, "bundle_version": VERSION_OF,
    },
    default_order=("dag_id",),
    key="d.dag_id",
)  # fmt: skip
#: By default the oldest first.
VERSIONS = Listing(
    columns=f"v.id as version_id, v.dag_id, v.number as version_number, v.created_at as version_created_at, {BUNDLE_OF}",
    tables="dag_version v",
    orders={"id": "v.id", "version_number": "v.number", "created_at": "v.created_at", "dag_id": "v.dag_id",
            "bundle_name": NAME_OF, "bundle_version": VERSION_OF},
    default_order=("id",),
    key="v.id",
)  # fmt: skip


def tag_filters() -> Filters:
    """No condition yet, for tags."""
    return Filters({"tag": "g.tag", "dag_id": "g.dag_id"})


def tagged(filters: Filters, tags: Collection[str] | None, *, with_all: bool) -> Filters:
    """DAGs with one of these tags, or with all of them."""
    if not tags:
        return filters
    return filters.where(f"v.data->'tags' {'?&' if with_all else '?|'} {filters.parameter(list(tags))}::text[]")


def visible(connection: Connection, dag_ids: Collection[str], tags: Collection[str] | None) -> list[str]:
    """Those of these DAGs that have one of these tags; None is all."""
    chosen = DAGS.filters().visible(tags).one_of("dag_id", dag_ids)
    found = connection.exec_driver_sql(f"select d.dag_id from dag d {chosen.sql}", chosen.parameters)
    return list(found.scalars())


def owned(filters: Filters, owners: Collection[str] | None) -> Filters:
    """DAGs with a task of one of these owners."""
    return filters.where(f"v.data->'owners' ?| {filters.parameter(list(owners))}::text[]") if owners else filters


def favorite(filters: Filters, account_id: int, wanted: bool | None) -> Filters:
    """DAGs that are favorites of an account, or are not."""
    if wanted is None:
        return filters
    of_account = f"select from favorite m where m.dag_id = d.dag_id and m.account_id = {filters.parameter(account_id)}"
    return filters.where(f"{'' if wanted else 'not '}exists ({of_account})")


def with_runs(filters: Filters, states: Collection[str] | None, starts: Row, ends: Row) -> Filters:
    """DAGs with a run that fits all of these."""
    columns = {"state": "x.state", "start": "x.started_at", "end": "x.ended_at"}
    runs = Filters(columns, parameters=filters.parameters).one_of("state", states).between("start", starts).between("end", ends)
    if not runs.conditions:
        return filters
    return filters.where(f"exists (select from dag_run x where x.dag_id = d.dag_id and {' and '.join(runs.conditions)})")


def dags(connection: Connection, filters: Filters, page: Page) -> Entries:
    """One page of DAGs, by default by id."""
    found = DAGS.page(connection, filters, page)
    return replace(found, rows=[_with_schedule(row) for row in found.rows])


def names(connection: Connection, filters: Filters) -> list[str]:
    """The IDs of all DAGs that the filters select."""
    found = connection.exec_driver_sql(f"select d.dag_id from {DAGS.source} {filters.sql} order by 1", filters.parameters)
    return list(found.scalars())


def dag(connection: Connection, dag_id: str) -> Row:
    """One DAG, also if its file is gone. NotFoundError."""
    return _with_schedule(DAGS.one(connection, DAGS.filters().equals("dag_id", dag_id), f"There is no DAG {dag_id!r}."))


def tasks(connection: Connection, dag_id: str) -> list[Row]:
    """The tasks of the newest version, in topological order, with all fields. NotFoundError."""
    row = connection.exec_driver_sql(
        "select v.data->'tasks' as tasks from dag d join dag_version v on v.id = d.version_id where d.dag_id = %s", (dag_id,)
    ).first()
    if row is None:
        raise NotFoundError(f"There is no DAG {dag_id!r}.")
    if not isinstance(row.tasks, list):
        raise UnreadableVersionError(f"The stored version of DAG {dag_id!r} has no tasks: reparse its file.")
    return [complete(task) for task in row.tasks]


def tags_of(connection: Connection, dag_id: str) -> list[str]:
    """The tags of a DAG; none if there is no such DAG."""
    tags: list[str] | None = connection.exec_driver_sql(
        "select v.data->'tags' from dag d join dag_version v on v.id = d.version_id where d.dag_id = %s", (dag_id,)
    ).scalar_one_or_none()
    return tags or []


def tags(connection: Connection, filters: Filters) -> list[str]:
    """Every tag of an active DAG, by name."""
    found = connection.exec_driver_sql(
        "select tag from (select distinct jsonb_array_elements_text(v.data->'tags') as tag, d.dag_id from dag d"
        f" join dag_version v on v.id = d.version_id where d.is_active) g {filters.sql} group by tag order by tag",
        filters.parameters,
    )
    return list(found.scalars())


def version(connection: Connection, dag_id: str, number: int) -> Row:
    """One version of a DAG. NotFoundError."""
    chosen = VERSIONS.filters().equals("dag_id", dag_id).equals("version_number", number)
    return VERSIONS.one(connection, chosen, f"DAG {dag_id!r} has no version {number}.")


def pinned_file(connection: Connection, version_id: int) -> tuple[int, str] | None:
    """The bundle version of a DAG version, and the DAG file in it; None if it has no bundle version."""
    row = connection.exec_driver_sql(
        "select bundle_version_id, data->>'file' as file from dag_version where id = %s and bundle_version_id is not null",
        (version_id,),
    ).first()
    return None if row is None else (row.bundle_version_id, row.file)


def source(connection: Connection, version_id: int) -> str | None:
    """The text of the file of a DAG version without a bundle version when it was stored; None if it was not kept."""
    found: str | None = connection.exec_driver_sql(
        "select s.content from dag_version v join dag_source s on s.digest = v.source where v.id = %s", (version_id,)
    ).scalar_one_or_none()
    return found


def running_runs(connection: Connection, dag_id: str) -> int:
    """How many runs of a DAG are running."""
    count: int = connection.exec_driver_sql(
        "select count(*) from dag_run where dag_id = %s and state = 'running'", (dag_id,)
    ).scalar_one()
    return count


def favorites(connection: Connection, account_id: int, dag_ids: Collection[str]) -> set[str]:
    """The favorites of an account among these DAGs."""
    found = connection.exec_driver_sql(
        "select dag_id from favorite where account_id = %s and dag_id = any(%s::text[])", (account_id, list(dag_ids))
    )
    return set(found.scalars())


def dags_of_file(connection: Connection, path: str) -> list[str]:
    """The IDs of the active DAGs of a file."""
    found = connection.exec_driver_sql(
        "select dag_id from dag where file = %s and bundle is null and is_active order by 1", (path,)
    )
    return list(found.scalars())


def _with_schedule(row: Row) -> Row:
    spec = row["spec"].get("schedule") or {"kind": "never"}
    try:
        periodic = timetable.from_spec(spec).is_periodic
    except (KeyError, TypeError, ValueError, PacelineError):  # only another version of Paceline understands it
        periodic = False
    summary = timetable.summary(spec)
    types = row["spec"].get("allowed_run_types") or ["backfill"]
    return row | {
        "spec": row["spec"] | {"params": params_in_order(row["spec"])},
        "timetable_summary": summary,
        "timetable_description": summary,
        "timetable_periodic": periodic,
        "is_backfillable": periodic and "backfill" in types,
    }
