"""The first version of a DAG whose runs fail, by the newest run of each version that has ended."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection

from paceline.states import RUN_FINISHED
from scheduler.store.db import rows
from scheduler.store.read import bundles, dags
from scheduler.store.read.listing import Row

#: `newest_state` is NULL for a version without a run that has ended.
VERSIONS = f"""
    select v.number as version_number, v.created_at, v.bundle_version_id, b.bundle as bundle_name, b.number as bundle_version,
           b.message, b.origin, b.created_by, r.success_count, r.failed_count, r.newest_run_id, r.newest_state
      from dag_version v left join bundle_version b on b.id = v.bundle_version_id
     cross join lateral (
        select count(*) filter (where state = 'success') as success_count, count(*) filter (where state = 'failed') as failed_count,
               (array_agg(run_id order by ended_at desc, id desc))[1] as newest_run_id,
               (array_agg(state order by ended_at desc, id desc))[1] as newest_state
          from dag_run where version_id = v.id and state in {RUN_FINISHED.sql}) r
     where v.dag_id = %s order by v.number
"""


def bisect(connection: Connection, dag_id: str) -> dict[str, Any]:
    """Find the first version since which each version's newest run has failed. NotFoundError if there is no such DAG.

    Returns it as `first_failing` (None: the newest version that has run succeeds, or none has run), `last_good` before it, the
    numbers of the versions in between, which have no run that has ended, as `untested`, the `files` of the bundle that differ
    between the two, and all `versions`.
    """
    dags.dag(connection, dag_id)
    versions = rows.dicts(connection.exec_driver_sql(VERSIONS, (dag_id,)))
    good, failing = _turn(versions)
    files = None
    if failing is not None and good is not None and failing["bundle_version_id"] and good["bundle_version_id"]:
        files = bundles.changes(connection, failing["bundle_version_id"], good["bundle_version_id"])["files"]
    since = good["version_number"] if good is not None else 0
    numbers = [row["version_number"] for row in versions]
    untested = [] if failing is None else [number for number in numbers if since < number < failing["version_number"]]
    return {
        "dag_id": dag_id, "first_failing": failing, "last_good": good, "untested": untested, "files": files, "versions": versions,
    }  # fmt: skip


def _turn(versions: Iterable[Row]) -> tuple[Row | None, Row | None]:
    """The newest version whose newest run succeeded, and the first one after it whose newest run failed."""
    good = failing = None
    for row in versions:
        if row["newest_state"] == "success":
            good, failing = row, None
        elif row["newest_state"] == "failed":
            failing = failing or row
    return good, failing
