"""Reproductions: runs that execute the code of an earlier run again, on the state of the tables that each of its tasks has read.

A reproduction counts for no schedule, no later run, no backfill and no asset, and gives no notice. It has no logical date, because
its original has that; its tasks see the dates and the type of the original (hot_path). What it writes goes into a namespace of its
own (tables/pointers), so no other run sees it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection

from paceline.authoring.asset import TABLE
from paceline.exceptions import CannotReproduceError, NotFoundError
from paceline.states import RUN_FINISHED
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.versions import Versions
from scheduler.store.db import prepared, rows
from scheduler.store.moves import fit
from scheduler.store.runs import integrity, runs

#: The revision of the schema whose processes know reproductions. An older one would let them write the tables of everybody.
SINCE = "0011"
#: The length of the original's ID in that of a reproduction: a run ID has at most 250 characters.
MOST_OF_ID = 220
SQL_OPERATORS = frozenset({"SQLExecuteQueryOperator", "DecoratedSQLOperator"})
ORIGINAL = """
select r.*, v.number as version_number, v.bundle_version_id, coalesce(d.is_active, false) as is_active,
       coalesce(s.is_paused, false) as is_paused,
       (select count(*) from run_version e where e.dag_run_id = r.id) as moves,
       exists (select from table_pin n where n.dag_run_id = r.id) as has_pins,
       exists (select from table_read t where t.dag_run_id = r.id) as has_read,
       exists (select from task_instance i join table_version v on v.catalog = %(catalog)s and v.task_instance_id = i.id
                where i.dag_run_id = r.id) as has_written
  from dag_run r join dag_version v on v.id = r.version_id
  left join dag d on d.dag_id = r.dag_id left join dag_schedule s on s.dag_id = r.dag_id
 where r.dag_id = %(dag_id)s and r.run_id = %(run_id)s
"""
#: What tasks of the original have read and no version of a table has any more.
GONE = """
select distinct on (t.namespace, t.name) t.namespace || '.' || t.name as name, t.publication, i.task_id
  from table_read t join task_instance i on i.id = t.task_instance_id and i.try_number = t.try_number
 where t.dag_run_id = %(run)s
   and not exists (select from table_version v where v.catalog = %(catalog)s and v.namespace = t.namespace and v.name = t.name
                      and v.metadata_location = t.metadata_location)
 order by t.namespace, t.name
"""
OLD_PROCESS = """
select name, host from process where stopped_at is null and coalesce(schema, '') < %s order by name limit 1
"""
#: The versions that the reproduction reads stay while it runs, as those that a run with read_at="run_start" reads.
HOLD_VERSIONS = """
insert into table_run (dag_run_id, started_at, publication)
select %(new)s, clock_timestamp(), min(least(publication, run_publication)) from table_pin where dag_run_id = %(run)s
"""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A new reproduction, and the version of the code that it executes."""

    id: int
    original_id: int
    run_id: str
    scratch: str
    version_number: int
    #: How often the original moved to another version while it ran: its earlier tasks executed other code.
    moves: int
    #: What its tasks do beside writing tables, as far as the DAG tells.
    effects: list[str]


def create(
    connection: Connection, dag_id: str, run_id: str, *, catalog: str, keep: bool, triggered_by: str, default_queue: str,
    despite_effects: bool = False, ignored: Sequence[str] = (),
) -> Reproduction:  # fmt: skip
    """Create a run that repeats an earlier one. NotFoundError; CannotReproduceError with the reason.

    `keep` leaves its tables until it is deleted. `despite_effects` runs tasks again that do more than write tables. The comparison
    leaves out the columns that are `ignored`.
    """
    original = rows.first_dict(connection.exec_driver_sql(ORIGINAL, {"dag_id": dag_id, "run_id": run_id, "catalog": catalog}))
    if original is None:
        raise NotFoundError(f"DAG {dag_id!r} has no run {run_id!r}: see `paceline runs list --dag {dag_id}`.")
    dag = Versions().dag(connection, original["version_id"])
    effects = list(_effects(dag))
    reason = why_not(original, dag, [] if despite_effects else effects) or _gone(connection, catalog, original)
    if reason is not None:
        raise CannotReproduceError(f"Run {run_id} of DAG {dag_id} cannot be reproduced: {reason}.")
    _refuse_old_processes(connection)
    new_id, new_name = _insert(connection, dag, original, triggered_by=triggered_by)
    scratch = f"reproduce_{new_id}"
    connection.exec_driver_sql(
        "insert into reproduction (dag_run_id, original_id, catalog, scratch, keep, ignored) values (%s, %s, %s, %s, %s, %s)",
        (new_id, original["id"], catalog, scratch, keep, list(ignored)),
    )
    connection.exec_driver_sql(HOLD_VERSIONS, {"new": new_id, "run": original["id"]})
    task_nos = integrity.wanted(dag, original["logical_date"], is_backfill=original["run_type"] == "backfill")
    fit.insert(connection, dag, new_id, task_nos, is_backfill=False, default_queue=default_queue)
    # No callback, no email, and no update of an asset.
    connection.exec_driver_sql("update task_instance set notify = null where dag_run_id = %s and notify is not null", (new_id,))
    connection.exec_driver_sql(
        "insert into dag_run_asset_event select %s, event_id from dag_run_asset_event where dag_run_id = %s",
        (new_id, original["id"]),
    )
    return Reproduction(new_id, original["id"], new_name, scratch, original["version_number"], original["moves"], effects)


def why_not(original: dict[str, Any], dag: SerializedDag, effects: Sequence[str]) -> str | None:
    """Why a run cannot be reproduced, as far as its row and its DAG tell; None if it can. `effects` are those without consent."""
    used = "has read tables and written none" if original["has_read"] else "has used no tables"
    reasons = {
        "it is a reproduction itself; name its original": original["run_type"] == "reproduction",
        f"it has not ended ({original['state']}); wait for its end": original["state"] not in RUN_FINISHED,
        "its DAG is in no file any more; restore the file": not original["is_active"],
        f"its DAG is paused; `paceline dags unpause {original['dag_id']}` lets it run": original["is_paused"],
        "its code was not kept; runs have their code with bundles.pin_dags_folder, or with `paceline deploy`":
            original["bundle_version_id"] is None,
        "its DAG has disable_bundle_versioning, so its runs have no code of their own": dag.disable_bundle_versioning,
        f"it {used}, so there is nothing to compare": not original["has_written"],
        "it ran before Paceline recorded which state of the tables each task reads; later runs can be reproduced":
            not original["has_pins"],
        f"{'; '.join(effects)}. A reproduction would do that again; --yes, or despite_effects in the REST API, allows it":
            bool(effects),
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), None)


def _effects(dag: SerializedDag) -> Iterator[str]:
    """What tasks do beside writing tables, as far as the DAG tells."""
    for task in dag.tasks:
        others = [uri for uri in task.outlets if not uri.startswith(TABLE)]
        if others:
            yield f"task {task.task_id} updates {', '.join(others)}, which is no table"
        elif task.operator == "TriggerDagRunOperator":
            yield f"task {task.task_id} triggers another DAG"
        elif task.operator in SQL_OPERATORS and not task.lineage:
            yield f"task {task.task_id} runs SQL whose tables are not known, or in a database of a connection"


def _gone(connection: Connection, catalog: str, original: dict[str, Any]) -> str | None:
    gone = [row.name for row in connection.exec_driver_sql(GONE, {"run": original["id"], "catalog": catalog})]
    if not gone:
        return None
    return (
        f"the state of {', '.join(gone)} that it has read was removed; retention.housekeeping_days and"
        " `paceline tables expire` say how long states are kept"
    )


def _refuse_old_processes(connection: Connection) -> None:
    old = connection.exec_driver_sql(OLD_PROCESS, (SINCE,)).first()
    if old is not None:
        raise CannotReproduceError(
            f"{old.name} on {old.host} is older than this version of Paceline, and would let a reproduction write the tables of"
            " everybody: upgrade all processes first."
        )


def _insert(connection: Connection, dag: SerializedDag, original: dict[str, Any], *, triggered_by: str) -> tuple[int, str]:
    """Insert the row of the run, with the first free number in its ID."""
    timeout_s = None if dag.dagrun_timeout_s is None else min(dag.dagrun_timeout_s, 1e9)
    number = connection.exec_driver_sql("select count(*) from reproduction where original_id = %s", (original["id"],)).scalar_one()
    while True:
        number += 1
        name = f"reproduce__{original['run_id']:.{MOST_OF_ID}}__{number}"
        same = ("dag_id", "version_id", "data_interval_start", "data_interval_end", "partition_key", "partition_date")
        row = prepared.execute(
            connection,
            runs.INSERT,
            {key: original[key] for key in same}
            | {"run_id": name, "run_type": "reproduction", "logical_date": None, "triggered_by": triggered_by, "notify": None}
            # Where a run without a logical date has its place among the runs of its DAG.
            | {"run_after": original["logical_date"] or original["run_after"], "conf": psycopg2.extras.Json(original["conf"])}
            | {"timeout_s": timeout_s, "may_begin": False, "max_active_runs": dag.max_active_runs},
        ).first()
        if row is not None:
            return row.id, name
