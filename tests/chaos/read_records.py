"""Reads the records for the checker: the ledger, and Paceline's tables at the end of the run."""

import contextlib
from typing import Any

import psycopg2
from support.ledger import Ledger

from chaos.records import Execution, Key, Records, StoredInstance, StoredRun, StoredTry

EXECUTIONS = """
select dag_id, run_id, task_id, map_index, try_number, process, child_pid, extract(epoch from started_at)::float,
       extract(epoch from ended_at)::float, outcome, given, returned, execution::text, beside::text[]
  from ledger order by started_at
"""
RUNS = "select dag_id, run_id, state, run_type, extract(epoch from logical_date)::float from dag_run"
INSTANCES = """
select r.dag_id, r.run_id, t.task_id, t.map_index, t.id, coalesce(t.state, 'none'), t.try_number, split_part(t.worker, '@', 1),
       extract(epoch from t.started_at)::float, extract(epoch from t.ended_at)::float, t.reason, x.value
  from task_instance t join dag_run r on r.id = t.dag_run_id
  left join xcom x on x.task_instance_id = t.id and x.key = 'return_value'
"""
TRIES = """
select task_instance_id, try_number, state, split_part(worker, '@', 1), extract(epoch from started_at)::float,
       extract(epoch from ended_at)::float, reason from task_try
"""


def read(database_url: str, ledger: Ledger) -> Records:
    """Everything, in one snapshot of each of the two databases."""
    with contextlib.closing(psycopg2.connect(database_url)) as connection, connection.cursor() as cursor:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        runs, instances, tries = (_rows(cursor, statement) for statement in (RUNS, INSTANCES, TRIES))
    of: dict[int, dict[int, StoredTry]] = {}
    for ti_id, number, state, process, start, ended, reason in tries:
        of.setdefault(ti_id, {})[number] = StoredTry(state=state, process=process or "", start=start, ended=ended, reason=reason)
    stored = []
    for *key, ti_id, state, number, process, start, ended, reason, result in instances:
        now = {number: StoredTry(state=state, process=process or "", start=start, ended=ended, reason=reason)}
        stored.append(
            StoredInstance(
                key=_key(key), state=state, try_number=number, tries=of.get(ti_id, {}) | (now if number else {}), result=result
            )
        )
    executions = [
        Execution(
            key=_key(row[:4]), try_number=row[4], process=row[5], child=row[6] or 0, start=row[7], ended=row[8], outcome=row[9],
            given=row[10], returned=row[11], id=row[12], beside=tuple(row[13]),
        )
        for row in ledger.rows(EXECUTIONS)
    ]  # fmt: skip
    made = [StoredRun(dag_id=a, run_id=b, state=c, run_type=d, logical_date=e or 0.0) for a, b, c, d, e in runs]
    return Records(made, stored, executions)


def _rows(cursor: Any, statement: str) -> list[Any]:
    cursor.execute(statement)
    return list(cursor.fetchall())


def _key(row: Any) -> Key:
    dag_id, run_id, task_id, map_index = row
    return dag_id, run_id, task_id, map_index
