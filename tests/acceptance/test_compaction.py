"""The DAG that joins small files, on a real stack, beside a task that appends to the same table."""

import pytest
from support.stacks import StackFactory
from support.waiting import eventually

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DAGS = """
import pyarrow as pa

from paceline import DAG, task
from paceline.operators import compaction_dag

compaction = compaction_dag(schedule=None, most_bytes=8 << 20)

with DAG("shop", schedule=None):

    @task
    def load(ti=None):
        ti.catalog.create_namespace_if_not_exists("sales")
        for name in ("orders", "lines"):
            table = ti.catalog.create_table_if_not_exists(f"sales.{name}", pa.schema([("id", pa.int64())]))
            for number in range(10 if name == "orders" else 6):
                table.append(pa.table({"id": [number]}))

    load()
"""


def test_a_run_joins_the_small_files_of_all_tables_and_the_next_continues(stack_factory: StackFactory) -> None:
    warehouse = stack_factory.settings.home / "lake"
    stack = stack_factory({"shop.py": DAGS}, env={"PACELINE_TABLES_WAREHOUSE": str(warehouse)})
    eventually(lambda: {one["dag_id"] for one in stack.json("dags", "list")} == {"shop", "compact_tables"}, timeout=60)

    def run(dag_id: str) -> dict[str, str]:
        made = stack.json("dags", "trigger", dag_id, "--wait", "--timeout", "100")
        tasks = stack.json("tasks", "list", dag_id, made["run_id"])
        return {one.get("map_label") or one["task_id"]: one["state"] for one in tasks}

    def rows() -> dict[str, tuple[str, int]]:
        newest = {name: stack.json("tables", "history", f"sales.{name}")[0] for name in ("orders", "lines")}
        return {name: (one["operation"], one["total_rows"]) for name, one in newest.items()}

    assert run("shop") == {"load": "success"}
    assert run("compact_tables") == {"find": "success", "sales.orders": "success", "sales.lines": "success"}
    assert rows() == {"orders": ("replace", 10), "lines": ("replace", 6)}
    assert run("compact_tables") == {"find": "success", "compact": "skipped"}, "three files and one are left"
    assert run("shop") == {"load": "success"}
    assert run("compact_tables") == {"find": "success", "sales.orders": "success", "sales.lines": "success"}
    assert rows() == {"orders": ("replace", 20), "lines": ("replace", 12)}
    last = stack.json("tables", "compact", "sales.orders")
    assert (last["files"], last["left"]) == (6, 0)
    assert stack.cli("tables", "compact", "sales.orders").stdout == "There is nothing to join in sales.orders.\n"
