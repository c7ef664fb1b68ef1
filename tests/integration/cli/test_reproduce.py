"""`paceline runs reproduce` and `paceline tables diff`, with their exit codes."""

import contextlib
import json
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.types import StringType
from support.reproductions import BODIES, EDGES, Body, load, original, work
from support.table_fixtures import lake, settings
from support.tables import SCHEMA, Lake, rows

from scheduler.store.worker.claims import Claim

from .conftest import Cli

__all__ = ["lake", "settings"]
REPRODUCE = ("runs", "reproduce", "d", "one")


@pytest.fixture
def cli(environment: dict[str, str], lake: Lake) -> Cli:
    return Cli(environment | {"PACELINE_TABLES_WAREHOUSE": lake.scenario.settings.tables.warehouse})


@contextlib.contextmanager
def running(lake: Lake, bodies: dict[str, Body]) -> Iterator[None]:
    """Run the tasks of open runs beside the command that waits for them."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            if lake.scenario.rows("select 1 from dag_run where state in ('queued', 'running')"):
                work(lake, bodies)
            ended.wait(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


def test_the_command_compares_cleans_up_and_reports_it_by_its_exit_code(cli: Cli, lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1, 2))
    original(lake, BODIES, EDGES)

    def other(catalog: RestCatalog, claim: Claim) -> None:
        load(catalog, claim)
        catalog.load_table("sales.orders").append(rows(9))

    with running(lake, BODIES):
        equal = cli(*REPRODUCE, "--json")
    answer = json.loads(equal.stdout)
    assert (equal.exit_code, answer["is_equal"], answer["namespace"]) == (0, True, None)
    assert [(row["table"], row["original_rows"], row["reproduced_rows"]) for row in answer["tables"]] == [
        ("sales.orders", 2, 2),
        ("sales.totals", 2, 2),
    ]
    assert answer["tables"][0]["original_checksum"] == answer["tables"][0]["reproduced_checksum"]
    assert not list((lake.scenario.settings.home / "lake").glob("reproduce_*"))
    with running(lake, BODIES | {"load": other}):
        differs = cli(*REPRODUCE, "--keep")
    assert differs.exit_code == 1
    assert "reproduce__one__2 differs from one." in differs.stdout
    assert list((lake.scenario.settings.home / "lake").glob("reproduce_*"))
    listed = cli.json("runs", "reproductions", "d", "one")
    assert [(row["run_id"], row["result"], row["differing"], row["reason"]) for row in listed] == [
        ("reproduce__one__2", "different", "sales.orders, sales.totals", None), ("reproduce__one__1", "equal", "", None),
    ]  # fmt: skip
    assert cli.json("runs", "reproductions", "d", "reproduce__one__1") == listed[1:]
    lake.scenario.sql("update reproduction set verdict = null, compared_end = null")
    shown = [(row["result"], row["reason"]) for row in cli.json("runs", "reproductions", "d", "one")]
    assert shown == [
        ("none", "It is compared within a minute or so."), ("none", "Its tables were deleted before anybody compared them."),
    ]  # fmt: skip
    refused = cli("runs", "reproduce", "d", "reproduce__one__1")
    assert (refused.exit_code, refused.stderr.strip()) == (
        2,
        "Error: Run reproduce__one__1 of DAG d cannot be reproduced: it is a reproduction itself; name its original.",
    )
    assert cli("runs", "reproduce", "d", "none").exit_code == 3


def test_a_diff_has_the_rows_and_columns_that_differ(cli: Cli, lake: Lake) -> None:
    table = lake.person().create_table("sales.t", SCHEMA)
    table.append(rows(1, 2, who="ada"))
    table.append(rows(3, who="bob"))
    first = table.snapshots()[0].snapshot_id
    table.delete("id = 1")
    with table.update_schema() as schema:
        schema.add_column("extra", StringType())
    table.append(pa.table({"id": [4], "who": ["eve"], "extra": ["x"]}))

    found = cli.json("tables", "diff", "sales.t", "3", "4")
    assert (found["added_rows"], found["removed_rows"], found["schema"]) == (0, 1, [])
    assert found["removed"] == [{"id": 1, "who": "ada"}]
    found = cli.json("tables", "diff", "sales.t", str(first), "6")
    assert found["schema"] == ["added extra string"]
    assert (found["added"], found["removed"]) == ([{"id": 3, "who": "bob"}, {"id": 4, "who": "eve"}], [{"id": 1, "who": "ada"}])
    assert cli.json("tables", "diff", "sales.t", "6", str(first), "--limit", "1")["added"] == [{"id": 1, "who": "ada"}]
    shown = cli("tables", "diff", "sales.t", "5", "6")
    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (0, "1 row added.")
    missing = cli("tables", "diff", "sales.t", "1", "999")
    assert (missing.exit_code, "has neither a publication nor a snapshot 999" in missing.stderr) == (3, True)
