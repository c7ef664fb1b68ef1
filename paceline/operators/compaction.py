"""The DAG that joins the small files of tables: a task finds the tables, and one for each of them joins its files."""

from collections.abc import Sequence
from typing import Any

from paceline.authoring.dag import DAG
from paceline.operators.python import PythonOperator
from paceline.tables.upkeep import MOST_BYTES, MOST_TABLES, compact, tables_to_compact


def compaction_dag(
    dag_id: str = "compact_tables",
    *,
    namespaces: Sequence[str] | None = None,
    most_tables: int = MOST_TABLES,
    most_bytes: int = MOST_BYTES,
    **dag_arguments: Any,
) -> DAG:
    """The DAG that joins small files of tables each day: those with the most small files first, each with a task of its own.

    `namespaces` limits it to tables of these namespaces. A run visits up to `most_tables` tables, and joins files of up to
    `most_bytes` in each; see paceline.tables.compact. The next run continues. A table that another task has changed meanwhile in
    another way than by appends is left to the next run. `dag_arguments` are further arguments of DAG, such as another `schedule`.
    """
    arguments: dict[str, Any] = {"schedule": "@daily", "catchup": False, "max_active_runs": 1, **dag_arguments}
    with DAG(dag_id, **arguments) as dag:
        found = PythonOperator(
            task_id="find", python_callable=_calls,
            op_kwargs={"namespaces": namespaces, "most_tables": most_tables, "most_bytes": most_bytes},
        )  # fmt: skip
        # One after the other: each holds the rows of a whole file in memory.
        PythonOperator.partial(
            task_id="compact", python_callable=compact, max_active_tis_per_dag=1,
            map_index_template="{{ task.op_kwargs['table'] }}",
        ).expand(op_kwargs=found.output)  # fmt: skip
    return dag


def _calls(namespaces: Sequence[str] | None, most_tables: int, most_bytes: int) -> list[dict[str, Any]]:
    """The arguments of `compact` for each table that has something to join."""
    return [{"table": name, "most_bytes": most_bytes} for name in tables_to_compact(namespaces, most_tables, most_bytes)]
