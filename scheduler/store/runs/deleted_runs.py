"""Deleted runs whose files have yet to be deleted, stored by the transaction that deletes the run, so that no kill leaks files."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

#: Seconds for which the process that took the files of a run deletes them alone. Then another process takes them.
TAKEN_S = 600.0


@dataclass(frozen=True, slots=True)
class DeletedRun:
    """A deleted run, with its number and the number of its task instances; `logs` if its logs are to be deleted, too."""

    dag_id: str
    run_id: str
    key: int
    instances: int = 0
    logs: bool = False


def store(connection: Connection, runs: Collection[DeletedRun], *, taken: bool) -> None:
    """Store runs that this transaction deletes. `taken` if its process deletes their files itself after the commit."""
    connection.exec_driver_sql(
        """
        insert into deleted_run (id, dag_id, run_id, logs, due_at)
        select n.id, n.dag_id, n.run_id, n.logs, clock_timestamp() + %s * interval '1 second'
          from unnest(%s::bigint[], %s::text[], %s::text[], %s::boolean[]) n (id, dag_id, run_id, logs)
        """,
        (
            TAKEN_S if taken else 0.0,
            [run.key for run in runs],
            [run.dag_id for run in runs],
            [run.run_id for run in runs],
            [run.logs for run in runs],
        ),
    )


def are_due(connection: Connection) -> bool:
    """Whether files of deleted runs wait for a process to delete them."""
    return bool(connection.exec_driver_sql("select exists (select from deleted_run where due_at <= now())").scalar_one())


def take(connection: Connection) -> DeletedRun | None:
    """Take the first of these runs that no process has taken.

    Its logs are kept if a run with the same ID was created since, which writes into the same folder.
    """
    row = connection.exec_driver_sql(
        """
        update deleted_run d set due_at = clock_timestamp() + %s * interval '1 second'
         where d.id = (select id from deleted_run where due_at <= now() order by due_at, id limit 1 for update skip locked)
        returning d.dag_id, d.run_id, d.id,
                  d.logs and not exists (select from dag_run r where r.dag_id = d.dag_id and r.run_id = d.run_id) as logs
        """,
        (TAKEN_S,),
    ).first()
    return None if row is None else DeletedRun(row.dag_id, row.run_id, row.id, logs=row.logs)


def forget(connection: Connection, key: int) -> None:
    """Forget a run whose files are deleted."""
    connection.exec_driver_sql("delete from deleted_run where id = %s", (key,))
