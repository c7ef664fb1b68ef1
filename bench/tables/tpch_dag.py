"""TPC-H as a DAG of `@task.sql` tasks, beside one plain Spark session that runs the same statements. The answers are DuckDB's.

The results of the tasks are read from PostgreSQL, where a task that comes after them would find them.
"""

import tempfile
from pathlib import Path
from typing import Any

from bench.options import Options
from bench.stack import Stack
from bench.tables import comparison, needs, tpch
from scheduler.store.worker.hot_path import WorkerConnection

SCALE, SMALL_SCALE = 0.1, 0.01
HEAD = """\
from paceline import DAG, task

with DAG("tpch", schedule=None) as dag:
"""
QUERY = """
    @task.sql(engine="spark", parameters={parameters})
    def {name}():
        return "{name}.sql"

    {name}()
"""
RESULTS = """
    select t.task_id, x.value
      from task_instance t join xcom x on x.task_instance_id = t.id and x.key = 'return_value'
     where t.dag_run_id = %s
"""


def measure(options: Options) -> dict[str, Any]:
    """The seconds of a run over those of the session, cold: `over_session`, with its spread. `equal` is the least number of
    answers of a run that are equal to those of DuckDB; `differs` says where others differ. MissingError.
    """
    scale = SMALL_SCALE if options.small else SCALE
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        data = Path(name)
        needs.generate(data, scale)
        right = tpch.answers(data, scale)
        with comparison.prepared(dag_files(scale), tpch.NAMESPACE, tpch.files(data)) as both:
            given = tpch.parameters(scale)
            statements: list[comparison.Statement] = [(text, given.get(query, {})) for query, text in tpch.texts().items()]
            figures, measured = comparison.pairs(
                options, lambda: both.dag("tpch"), lambda: both.session(statements), f"TPC-H at scale {scale:g}"
            )
            found = [results(both.stack, run) for run, _ in measured]
    for _, rows in measured:
        if [len(one) for one in rows] != [len(one) for one in right.values()]:
            raise AssertionError("The session has other numbers of rows than DuckDB.")
    differs = [tpch.differences(one, right) for one in found]
    for query, text in {query: text for one in differs for query, text in one.items()}.items():
        options.say(f"{query} differs from DuckDB: {text}")
    return {
        "scale": scale,
        **figures,
        "equal": len(right) - max(len(one) for one in differs),
        "differs": {query: text for one in differs for query, text in one.items()},
    }


def dag_files(scale: float) -> dict[str, str]:
    """The DAG file, and the files with the SQL beside it."""
    values, texts = tpch.parameters(scale), tpch.texts()
    tasks = [QUERY.format(name=name, parameters=values.get(name)) for name in texts]
    return {"tpch.py": HEAD + "".join(tasks), **{f"{name}.sql": text for name, text in texts.items()}}


def results(stack: Stack, run: int) -> dict[str, Any]:
    """The result of each task of a run, as a task reads it."""
    connection = WorkerConnection(stack.settings, "bench")
    try:
        return dict(connection.read(RESULTS, (run,)))
    finally:
        connection.close()
